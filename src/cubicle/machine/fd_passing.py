"""Descriptors that the guest hands over: asked for on a connection of its own, and as little trusted as its bytes."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
import threading

from cubicle.guest import operations, wire
from cubicle.guest.messages import BadMessage
from cubicle.machine.errors import refusal

_MAX_ANSWER = 32 * 1024
"""The longest path, each byte of it escaped, and some more."""
_ONE = socket.CMSG_LEN(struct.calcsize("i"))
"""Room for one descriptor: CMSG_SPACE would round it up to two."""


class NotPassed(Exception):
    """What came is not what was asked for."""


async def ask(link: socket.socket, request: operations.Read) -> tuple[int, operations.FileSent]:
    """The one descriptor that the guest answers with, which is the caller's to close, and what it says with it.

    NotHanded when it brings none or breaks the rules, MachineError when it says no. Waits without limit: the caller
    sets one.
    """
    found: list[int] = []
    heard = b""
    try:
        await asyncio.get_running_loop().sock_sendall(link, wire.frame(1, wire.OPEN, request.encode()))
        while not _whole(heard):
            await _readable(link)
            part, ancillary, flags, _ = link.recvmsg(_MAX_ANSWER, _ONE, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
            found += _descriptors(ancillary)
            heard += part
            if not part or flags & socket.MSG_CTRUNC or len(found) > 1 or len(heard) > _MAX_ANSWER:
                raise NotPassed("the guest does not keep to the rules")
        answer = _answer(heard)
        if not found:
            raise NotPassed("the guest sent no descriptor")
        return found.pop(), answer
    except (OSError, wire.WireError, BadMessage) as error:
        raise NotPassed(str(error)) from None
    finally:
        for descriptor in found:
            close(descriptor)


def close(descriptor: int) -> None:
    """In a thread of its own: what the guest does with its copy meanwhile can make closing last long."""
    try:
        threading.Thread(target=os.close, args=(descriptor,), name="closing", daemon=True).start()
    except RuntimeError:  # the system has no thread to give
        os.close(descriptor)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def _whole(heard: bytes) -> bool:
    return len(heard) >= wire.HEADER.size and len(heard) >= wire.HEADER.size + wire.read_header(heard)[0]


def _answer(heard: bytes) -> operations.FileSent:
    length, channel, kind, _ = wire.read_header(heard)
    fields = wire.read_message(heard[wire.HEADER.size : wire.HEADER.size + length])
    if channel == 1 and kind == wire.FAIL:
        raise refusal(operations.Failure.decode(fields))
    if channel != 1 or kind != wire.END:
        raise NotPassed("the guest said something else")
    return operations.FileSent.decode(fields)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
