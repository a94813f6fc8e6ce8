"""The server's side of SOCKS5 (RFC 1928): no authentication, CONNECT only, names looked up by the proxy."""

from __future__ import annotations

from enum import IntEnum
from ipaddress import ip_address
from typing import Protocol

from cubicle.egress.policy import BadTarget, Target

VERSION = 5
_NO_AUTHENTICATION = 0
_NO_METHOD = 0xFF
_CONNECT = 1


class Reply(IntEnum):
    DONE = 0
    FAILED = 1
    DENIED = 2
    HOST_UNREACHABLE = 4
    BAD_COMMAND = 7
    BAD_ADDRESS = 8


class BadHandshake(Exception):
    """The caller does not speak SOCKS5 as it must."""


class Bytes(Protocol):
    async def exactly(self, count: int) -> bytes: ...
    async def write(self, data: bytes | memoryview) -> None: ...


async def handshake(caller: Bytes) -> Target:
    """Where the caller wants to go; `answer` has to follow."""
    await _agree(caller)
    version, command, _, kind = await caller.exactly(4)
    if version != VERSION:
        raise BadHandshake("not a request of SOCKS5")
    if command != _CONNECT:
        await answer(caller, Reply.BAD_COMMAND)
        raise BadHandshake("a command other than CONNECT")
    match kind:
        case 1:
            host = str(ip_address(await caller.exactly(4)))
        case 4:
            host = str(ip_address(await caller.exactly(16)))
        case 3:
            (length,) = await caller.exactly(1)
            host = (await caller.exactly(length)).decode("ascii", "replace")
        case _:
            await answer(caller, Reply.BAD_ADDRESS)
            raise BadHandshake("an unknown kind of address")
    port = int.from_bytes(await caller.exactly(2), "big")
    try:
        return Target.parse(host, port)
    except BadTarget as error:
        await answer(caller, Reply.BAD_ADDRESS)
        raise BadHandshake(str(error)) from None


async def _agree(caller: Bytes) -> None:
    version, count = await caller.exactly(2)
    if version != VERSION:
        raise BadHandshake("not a greeting of SOCKS5")
    if _NO_AUTHENTICATION not in await caller.exactly(count):
        await caller.write(bytes([VERSION, _NO_METHOD]))
        raise BadHandshake("no way to log in that the proxy knows")
    await caller.write(bytes([VERSION, _NO_AUTHENTICATION]))


async def answer(caller: Bytes, reply: Reply) -> None:
    await caller.write(bytes([VERSION, reply, 0, 1, 0, 0, 0, 0, 0, 0]))
