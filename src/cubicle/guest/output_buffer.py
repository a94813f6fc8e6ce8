"""The end of a command's output, kept for whoever attaches again."""

from __future__ import annotations

from collections import deque

TAIL = 64 * 1024


class OutputBuffer:
    """The last part of a command's output."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self.total = 0

    def add(self, stream: int, chunk: bytes) -> None:
        self.total += len(chunk)
        if len(chunk) > TAIL:
            chunk = chunk[-TAIL:]
        self._chunks.append((stream, chunk))
        self._size += len(chunk)
        while self._size - len(self._chunks[0][1]) >= TAIL:
            self._size -= len(self._chunks.popleft()[1])

    @property
    def offset(self) -> int:
        """Where in the whole output the kept part begins."""
        return self.total - self._size

    def chunks(self) -> list[tuple[int, bytes]]:
        return list(self._chunks)
