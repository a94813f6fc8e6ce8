"""The SHA-256 of what passes by, made in a thread: a third of an upload's work, off the loop. So is what else each
chunk needs there, as writing it to a disk."""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence

_PIECE = 256 * 1024
_BUDGET = 6 * 1024**2
"""What all sums together may hold: enough for one to go on while its thread waits for a processor or a disk."""
_under_way: weakref.WeakSet[Checksum] = weakref.WeakSet()


class Checksum:
    """Takes chunks in order. They wait for the thread as long as there is room, then the caller waits too."""

    def __init__(self, also: Callable[[Sequence[bytes]], None] | None = None) -> None:
        self._also = also
        self._digest = hashlib.sha256()
        self._chunks: deque[bytes] = deque()
        self._added = 0
        self._done = 0  # written by the thread alone, as `_added` is by the loop
        self._at_work: asyncio.Future[None] | None = None
        _under_way.add(self)

    async def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._added += len(chunk)
        waiting = self._added - self._done
        if waiting >= _PIECE and (self._at_work is None or self._at_work.done()):
            await self._hand_over()
        elif waiting >= max(2 * _PIECE, _BUDGET // len(_under_way)):
            await self._idle()

    async def finish(self) -> str:
        """The sum of everything, in hexadecimal."""
        await self._idle()
        while self._chunks:
            await self._hand_over()
            await self._idle()
        return self._digest.hexdigest()

    def drop(self) -> None:
        """Nobody wants the sum any more: what waits is let go, and what the thread still says is not heard."""
        self._chunks.clear()
        if self._at_work is not None:
            self._at_work.add_done_callback(lambda work: work.cancelled() or work.exception())

    async def _hand_over(self) -> None:
        await self._idle()
        self._at_work = asyncio.get_running_loop().run_in_executor(None, self._work)

    async def _idle(self) -> None:
        if self._at_work is not None:
            await self._at_work

    def _work(self) -> None:
        while self._chunks:
            chunks, size = [], 0
            while self._chunks and size < _PIECE:
                chunks.append(self._chunks.popleft())
                size += len(chunks[-1])
            for chunk in chunks:
                self._digest.update(chunk)
            if self._also is not None:
                self._also(chunks)
            self._done += size
