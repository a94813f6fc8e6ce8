"""A guest that lies: whatever bytes come out of a sandbox, the service gives up the line and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import socket
import struct

import pytest

from cubicle.guest import wire
from cubicle.sandbox.driver import SandboxError
from cubicle.sandbox.line import Line
from cubicle.sandbox.machine import Machine

HUGE = 2**32 - 1


def header(length: int, number: int, kind: int, stream: int = 0) -> bytes:
    return wire.HEADER.pack(length, number, kind, stream, 0)


def frame(number: int, kind: int, payload: bytes, stream: int = 0) -> bytes:
    return header(len(payload), number, kind, stream) + payload


DEEP = b'{"a":' * 20_000 + b"1" + b"}" * 20_000
HOSTILE = {
    "an endless frame": header(HUGE, 1, wire.DATA),
    "a frame over the limit": header(wire.MAX_PAYLOAD + 1, 1, wire.DATA) + bytes(1000),
    "data on no channel": frame(77, wire.DATA, b"x" * 100) * 3,
    "an unknown kind": frame(1, 99, b""),
    "an answer that is no JSON": frame(1, wire.END, b"\xff\xfe{"),
    "an answer that is a list": frame(1, wire.END, b"[1,2,3]"),
    "an answer that nests for ever": frame(1, wire.END, DEEP),
    "a number of a million digits": frame(1, wire.END, b'{"version":' + b"9" * 60_000 + b"}"),
    "not a number": frame(1, wire.END, b'{"version":NaN,"uptime":Infinity}'),
    "a failure without words": frame(1, wire.FAIL, b"{}"),
    "a failure of the wrong shape": frame(
        1, wire.FAIL, json.dumps({"error": [], "message": {}, "details": 3}).encode()
    ),
    "credit of the wrong size": frame(1, wire.CREDIT, b"\1\2\3"),
    "more credit than there is": frame(1, wire.CREDIT, struct.pack("!I", HUGE)) * 10,
    "more data than was asked for": frame(1, wire.DATA, b"x" * 60_000) * 400,
    "the end, many times": frame(1, wire.END, b"{}") * 50,
    "an opening of the host's own number": frame(1, wire.OPEN, b'{"op":"run"}'),
    "openings without end": b"".join(frame(n * 2, wire.OPEN, b'{"op":"caller"}') for n in range(1, 6000)),
    "events without end": frame(1, wire.EVENT, b'{"a":1}') * 9000,
    "silence in the middle of a header": b"\0\0",
}


async def face(payload: bytes) -> None:
    """Let a machine ask for something, and a hostile guest answer with these bytes and hang up."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    loop = asyncio.get_running_loop()
    machine = Machine("hostile", await Line.over(ours))

    async def answer() -> None:
        try:
            await loop.sock_recv(theirs, 65536)
            await loop.sock_sendall(theirs, payload)
        except OSError:
            pass
        finally:
            theirs.close()

    replying = asyncio.ensure_future(answer())
    try:
        async with asyncio.timeout(60):
            await machine.hello()
    except SandboxError:
        pass
    finally:
        machine.close()
        replying.cancel()
        await asyncio.gather(replying, return_exceptions=True)
        theirs.close()


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_lie_costs_the_guest_its_line_and_nothing_else(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await face(HOSTILE[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64_000


async def test_a_guest_that_asks_and_never_listens_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each opening that nobody wants is answered with a refusal; a guest that reads none of them loses the line."""
    monkeypatch.setattr("cubicle.sandbox.line._MOST_UNREAD", 256 * 1024)
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    line = await Line.over(ours)
    loop = asyncio.get_running_loop()
    flood = b"".join(frame(n * 2, wire.OPEN, b"{}") for n in range(1, 20_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while sent < 20:
            async with asyncio.timeout(60):
                await loop.sock_sendall(theirs, flood)
            sent += 1
    assert sent < 20
    assert line.lost.done()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8_000
    theirs.close()


async def test_random_bytes_and_broken_frames_do_no_harm() -> None:
    dice = random.Random(7)
    kinds = [wire.OPEN, wire.DATA, wire.CREDIT, wire.EOF, wire.EVENT, wire.END, wire.FAIL, wire.CANCEL]
    for _ in range(250):
        parts = []
        for _ in range(dice.randrange(1, 8)):
            body = dice.choice([dice.randbytes(dice.randrange(200)), b"{}", b'{"version":1}', b"[]", b'"x"'])
            part = bytearray(frame(dice.choice([0, 1, 2, 3, HUGE]), dice.choice(kinds), body, dice.randrange(4)))
            for _ in range(dice.randrange(3)):
                part[dice.randrange(len(part))] = dice.randrange(256)
            parts.append(bytes(part))
        await face(b"".join(parts))
