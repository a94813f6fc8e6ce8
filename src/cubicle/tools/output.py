"""Section 8: output is capped at 30,000 characters, the first 15,000 plus the last 15,000, in constant memory."""

from __future__ import annotations

import codecs

OUTPUT_CAP = 30_000


class Cap:
    """Takes text piece by piece and keeps its two ends."""

    def __init__(self, limit: int = OUTPUT_CAP) -> None:
        self._half = limit // 2
        self._head = ""
        self._tail = ""
        self.characters = 0

    def feed(self, text: str) -> None:
        self.characters += len(text)
        if room := self._half - len(self._head):
            self._head += text[:room]
            text = text[room:]
        if len(text) >= self._half:
            self._tail = text[-self._half :]
        elif text:
            self._tail += text
            if len(self._tail) > 4 * self._half:
                self._tail = self._tail[-self._half :]

    def skip(self, characters: int) -> None:
        """So many are missing here, after the first half of what is kept."""
        self.characters += characters

    @property
    def left_out(self) -> int:
        return max(0, self.characters - 2 * self._half)

    def ends(self) -> tuple[str, str]:
        """The first and the last characters that are kept."""
        return self._head, self._tail[-self._half :]

    def text(self) -> str:
        """What is kept; where the middle is missing, a line says how much."""
        head, tail = self.ends()
        return joined(head, self.left_out, tail)


def joined(head: str, left_out: int, tail: str) -> str:
    """Both ends of a text with so many characters left out between them."""
    return f"{head}\n[... {left_out:,} characters left out ...]\n{tail}" if left_out > 0 else head + tail


class Decoder:
    """Bytes to text as they come: what is not UTF-8 becomes U+FFFD, and no character is split between two pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def cap(text: str, limit: int = OUTPUT_CAP) -> str:
    """The capped form of a whole text."""
    capped = Cap(limit)
    capped.feed(text)
    return capped.text()
