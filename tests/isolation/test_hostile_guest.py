"""A guest that lies: whatever bytes come out of a sandbox, the service gives up the line and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from cubicle.guest import wire
from cubicle.guest.operations import Entry
from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.stream import Stream
from tests.support.frames import message

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
    machine = Machine("hostile", await GuestLink.over(ours))

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
    monkeypatch.setattr("cubicle.machine.connection._MAX_UNREAD", 256 * 1024)
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    line = await GuestLink.over(ours)
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


# ---- what a fake guest does in the middle of an exchange


class FakeGuest:
    """The sandbox's end of a line, played by the test: answers each opening by what `script` makes of it."""

    def __init__(self, script: Callable[[FakeGuest, int, dict[str, Any]], Awaitable[None]]) -> None:
        self.ours, self.theirs = socket.socketpair()
        for end in (self.ours, self.theirs):
            end.setblocking(False)
        self._script = script
        self._playing: set[asyncio.Task[None]] = set()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.theirs, data)

    async def listen(self) -> None:
        heard = b""
        while True:
            part = await asyncio.get_running_loop().sock_recv(self.theirs, 65536)
            if not part:
                return
            heard += part
            while len(heard) >= wire.HEADER.size and len(heard) >= wire.HEADER.size + wire.read_header(heard)[0]:
                length, number, kind, _ = wire.read_header(heard)
                payload, heard = heard[wire.HEADER.size :][:length], heard[wire.HEADER.size + length :]
                if kind == wire.OPEN:
                    task = asyncio.ensure_future(self._play(number, wire.read_message(payload)))
                    self._playing.add(task)
                    task.add_done_callback(self._playing.discard)

    async def _play(self, number: int, request: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            await self._script(self, number, request)


@contextlib.asynccontextmanager
async def faced(script: Callable[[FakeGuest, int, dict[str, Any]], Awaitable[None]]) -> AsyncIterator[Machine]:
    guest = FakeGuest(script)
    machine = Machine("hostile", await GuestLink.over(guest.ours))
    listening = asyncio.ensure_future(guest.listen())
    try:
        async with asyncio.timeout(60):
            yield machine
    finally:
        machine.close()
        tasks = [listening, *guest._playing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        guest.theirs.close()


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


STAT = {"path": "/f", "kind": "file", "size": 10, "mtime": 1.0, "mode": 0o644, "inode": 1, "blocks": 8}


async def endless_file(guest: FakeGuest, number: int, _request: dict[str, Any]) -> None:
    await guest.send(message(number, wire.EVENT, stat=STAT, length=2**62))
    for _ in range(4000):
        await guest.send(frame(number, wire.DATA, bytes(256 * 1024)))


async def test_a_read_with_a_limit_takes_no_more_than_that() -> None:
    before = peak()
    async with faced(endless_file) as machine:
        with pytest.raises(SandboxError):
            await machine.read_bytes("/f", limit=1000)
    assert peak() - before < 32_000


async def test_events_are_counted_and_end_the_line() -> None:
    async def events(guest: FakeGuest, number: int, _request: dict[str, Any]) -> None:
        for _ in range(4000):
            await guest.send(message(number, wire.EVENT, text="x" * 120_000))

    before = peak()
    async with faced(events) as machine:
        with pytest.raises(SandboxError):
            await machine.hello()
        assert machine.offence
    assert peak() - before < 32_000


async def test_callers_from_inside_have_a_number_and_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubicle.machine.connection._MAX_INBOUND", 50)
    monkeypatch.setattr("cubicle.machine.connection._MAX_UNREAD_TOTAL", 4 * 1024**2)
    flooded = asyncio.Event()

    async def callers(guest: FakeGuest, number: int, request: dict[str, Any]) -> None:
        if request["op"] != "listen":
            await guest.send(message(number, wire.END))
            return
        await guest.send(message(number, wire.EVENT, listening=3128))
        for caller in range(2, 4000, 2):
            await guest.send(message(caller, wire.OPEN, listener=number))
        for caller in range(2, 400, 2):
            await guest.send(frame(caller, wire.DATA, bytes(200 * 1024)))
        flooded.set()

    served = 0

    async def never_reads(_stream: Stream) -> None:
        nonlocal served
        served += 1
        await asyncio.sleep(60)

    before = peak()
    async with faced(callers) as machine, machine.listen(3128, never_reads):
        await flooded.wait()
        await machine.ping()  # the line is as good as before
        assert served <= 50
        assert machine._line.unread <= 4 * 1024**2
    assert peak() - before < 32_000


@pytest.mark.parametrize(
    "stats",
    [
        b'{"cpu_seconds":NaN,"memory":Infinity}',
        b'{"cpu_seconds":' + b"9" * 400 + b',"memory":-1,"processes":' + b"9" * 400 + b"}",
        b'{"cpu_seconds":1e308,"memory":"\\ud800","processes":[],"disk_total":{},"disk_free":true}',
        b"{}",
    ],
)
async def test_statistics_that_make_no_sense_are_not_passed_on(stats: bytes) -> None:
    async def answers(guest: FakeGuest, number: int, _request: dict[str, Any]) -> None:
        await guest.send(frame(number, wire.END, stats))

    async with faced(answers) as machine:
        with contextlib.suppress(SandboxError):
            json.dumps(vars(await machine.stats()), allow_nan=False).encode()


WRONG = [None, True, -1, 2**70, 10**400, 1.5, "\ud800", "x" * 1000, [], [[]], {}, {"a": {}}]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:12])
async def test_answers_of_wrong_types_raise_nothing_unforeseen(value: Any) -> None:
    names = ("version", "stat", "length", "started", "pid", "offset", "code", "signal", "seconds", "made_room")
    names += ("created", "size", "path", "line", "listening", "error", "message", "details", "kind", "mtime", "hands")  # type: ignore[assignment]
    fields = dict.fromkeys(names, value)

    async def answers(guest: FakeGuest, number: int, request: dict[str, Any]) -> None:
        if request["op"] in ("run", "read", "listen"):
            await guest.send(message(number, wire.EVENT, **fields))
        if request["op"] == "list":
            await guest.send(frame(number, wire.DATA, json.dumps(fields).encode() + b"\n"))
        await guest.send(message(number, wire.FAIL if request["op"] == "remove" else wire.END, **fields))

    async def use(machine: Machine) -> AsyncIterator[Awaitable[object]]:
        yield machine.hello()
        yield machine.stats()
        yield machine.stat("/f")
        yield machine.write("/f", b"x")
        yield machine.edit("/f", "a", "b")
        yield machine.remove("/f")
        yield machine.output("true")
        yield machine.read_bytes("/f", limit=10)
        yield _all(machine.list("/"))

    async with faced(answers) as machine:
        async for asked in use(machine):
            with contextlib.suppress(SandboxError):
                str(await asked).encode("utf-8", "surrogatepass")


async def _all(entries: AsyncIterator[Entry]) -> list[Entry]:
    return [entry async for entry in entries]


async def test_crumbs_without_end_do_not_take_the_loop_from_others() -> None:
    """Frames are taken at a rate: whoever else waits for the loop gets it."""

    async def crumbs(guest: FakeGuest, _number: int, _request: dict[str, Any]) -> None:
        while True:
            await guest.send(frame(77, wire.DATA, b"") * 20_000)

    async with faced(crumbs) as machine:
        asking = asyncio.ensure_future(machine.hello())
        await asyncio.sleep(0.5)
        began, turns = time.process_time(), 0
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            await asyncio.sleep(0.01)
            turns += 1
        assert time.process_time() - began < 0.7
        assert turns > 20
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
