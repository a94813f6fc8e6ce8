"""Splices that share the threads of one sandbox: each gets its turn, and waits in a thread only while one is free."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from cubicle.machine.passed_file import FileThreads
from cubicle.machine.socket_splice import _WAIT, _WAIT_IF_BUSY, SocketSplice
from tests.sandbox.offering import LIMIT, until

PART = bytes(8192)
ENDLESS = 1 << 40


class Stream:
    """A splice from a sender that never pauses to a reader that never does."""

    def __init__(self, size: int, threads: FileThreads, stack: ExitStack) -> None:
        self._ends = [stack.enter_context(end) for pair in (socket.socketpair(), socket.socketpair()) for end in pair]
        self._sender, source, self._target, self._reader = self._ends
        for end in self._ends:
            end.setblocking(False)
        self.splice = stack.enter_context(closing(SocketSplice(source.fileno(), b"", size, threads)))
        self.taken = 0

    async def run(self) -> int:
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._send()), group.create_task(self._take())]
            try:
                return await self.splice.into(self._target.fileno())
            finally:
                for other in others:
                    other.cancel()

    async def _send(self) -> None:
        while True:
            with suppress(BlockingIOError):
                self._sender.send(PART)
            await asyncio.sleep(0)

    async def _take(self) -> None:
        while True:
            with suppress(BlockingIOError):
                self.taken += len(self._reader.recv(1 << 20))
            await asyncio.sleep(0)


@contextmanager
def seen_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    seen: list[int] = []
    burst = SocketSplice._burst

    def noting(splice: SocketSplice, client: socket.socket, wait: int) -> int | None:
        seen.append(wait)
        return burst(splice, client, wait)

    with monkeypatch.context() as patch:
        patch.setattr(SocketSplice, "_burst", noting)
        yield seen


async def test_a_splice_gets_its_turn_beside_more_than_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = FileThreads()
    with ExitStack() as stack, seen_waits(monkeypatch) as waits:
        others = [Stream(ENDLESS, threads, stack) for _ in range(3)]
        running = [asyncio.ensure_future(other.run()) for other in others]
        async with asyncio.timeout(LIMIT):
            await until(lambda: all(other.taken for other in others))
            assert await Stream(1 << 20, threads, stack).run() == 1 << 20
            await until(lambda: _WAIT_IF_BUSY in waits)
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for other in others:
            await other.splice.released()


async def test_a_splice_that_is_alone_waits_longer_in_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack, seen_waits(monkeypatch) as waits:
        async with asyncio.timeout(LIMIT):
            assert await Stream(1 << 20, FileThreads(), stack).run() == 1 << 20
    assert set(waits) == {_WAIT}
