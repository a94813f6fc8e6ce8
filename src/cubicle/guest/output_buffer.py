"""The ends of a command's output, kept for whoever attaches again."""

from __future__ import annotations

from collections import deque

TAIL = 64 * 1024
HEAD = 60_000
"""15,000 characters take no more."""


class OutputBuffer:
    """The last part of a command's output and, if that is wanted, the first."""

    def __init__(self, head: int = 0) -> None:
        self._chunks: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._room = head
        self.head: list[tuple[int, bytes]] = []
        self.total = 0

    def add(self, stream: int, chunk: bytes) -> None:
        self.total += len(chunk)
        if self._room:
            first, chunk = chunk[: self._room], chunk[self._room :]
            self._room -= len(first)
            self._lengthen(stream, first)
            if not chunk:
                return
        if len(chunk) > TAIL:
            chunk = chunk[-TAIL:]
        self._chunks.append((stream, chunk))
        self._size += len(chunk)
        while self._size - len(self._chunks[0][1]) >= TAIL:
            self._size -= len(self._chunks.popleft()[1])

    def _lengthen(self, stream: int, chunk: bytes) -> None:
        """A program that prints byte by byte leaves one piece, not thousands."""
        if self.head and self.head[-1][0] == stream:
            self.head[-1] = (stream, self.head[-1][1] + chunk)
        else:
            self.head.append((stream, chunk))

    @property
    def offset(self) -> int:
        """Where in the whole output the kept end begins."""
        return self.total - self._size

    @property
    def gap(self) -> int:
        """How many bytes are missing between the kept beginning and the kept end."""
        return self.offset - sum(len(chunk) for _, chunk in self.head)

    def chunks(self) -> list[tuple[int, bytes]]:
        """The beginning, if it is kept, and the end."""
        return [*self.head, *self._chunks]

    def clear(self) -> None:
        """It is kept elsewhere."""
        self._chunks.clear()
        self.head.clear()
