"""The SHA-256 of what passes by, made in a thread: a third of an upload's work, off the loop."""

from __future__ import annotations

import asyncio
import hashlib

_PIECE = 256 * 1024


class Checksum:
    """Takes chunks in order; holds at most two pieces of them at a time."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._chunks: list[bytes] = []
        self._size = 0
        self._at_work: asyncio.Future[None] | None = None

    async def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size >= _PIECE:
            await self._hand_over()

    async def finish(self) -> str:
        """The sum of everything, in hexadecimal."""
        await self._hand_over()
        await self._idle()
        return self._digest.hexdigest()

    async def _hand_over(self) -> None:
        await self._idle()
        chunks, self._chunks, self._size = self._chunks, [], 0
        self._at_work = asyncio.get_running_loop().run_in_executor(None, self._take, chunks)

    async def _idle(self) -> None:
        if self._at_work is not None:
            await self._at_work

    def _take(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._digest.update(chunk)
