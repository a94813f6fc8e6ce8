"""Line numbers: how `view` shows text, of any size, in constant memory."""

from __future__ import annotations

from dataclasses import dataclass

from cubicle.tools.output import OUTPUT_CAP, Cap, cap, joined


class OutOfRange(ValueError):
    """view_range names lines that the file does not have; the message says how many there are."""


class BadRange(ValueError):
    """view_range is not a range at all."""


@dataclass(frozen=True, slots=True)
class LineRange:
    """Lines `start` to `end`, 1-indexed and inclusive; an end of None is the end of the file."""

    start: int
    end: int | None

    @classmethod
    def parse(cls, start: int, end: int) -> LineRange:
        """From the two numbers of view_range, where an end of -1 is the end of the file."""
        if start < 1 or (end != -1 and end < start):
            raise BadRange(
                f"`view_range` [{start}, {end}] is not a range: lines count from 1, and the end (-1: the end of the "
                "file) is not before the start."
            )
        return cls(start, None if end == -1 else end)


WHOLE = LineRange(1, None)


def numbered(line: str, number: int) -> str:
    return f"{number:6}\t{line}"


class Numbering:
    """Takes text piece by piece; keeps the two ends of the numbered form of the lines in range.

    Only the raw ends are kept and newlines counted while reading, so that a huge file costs little more than
    reading it; numbers are put on at the end.
    """

    def __init__(self, lines: LineRange = WHOLE, limit: int = OUTPUT_CAP) -> None:
        self._range = lines
        self._limit = limit
        self._raw = Cap(limit)
        self._newlines = 0
        self._kept_newlines = 0
        self._open_line = False

    @property
    def done(self) -> bool:
        """What comes next is past the range: reading can stop."""
        return self._range.end is not None and self._newlines >= self._range.end

    @property
    def lines(self) -> int:
        """How many lines were fed; a last one without a line end counts."""
        return self._newlines + self._open_line

    def feed(self, text: str) -> None:
        if not text:
            return
        line = self._newlines + 1
        self._newlines += text.count("\n")
        self._open_line = not text.endswith("\n")
        kept = _between(text, self._range.start - line, None if self._range.end is None else self._range.end - line + 1)
        self._kept_newlines += kept.count("\n")
        self._raw.feed(kept)

    def finish(self) -> str:
        """The capped, numbered text. Raises OutOfRange when the file has not the lines asked for."""
        total, wanted = self.lines, self._range
        if wanted != WHOLE and (wanted.start > total or (wanted.end is not None and wanted.end > total)):
            asked = f"[{wanted.start}, {-1 if wanted.end is None else wanted.end}]"
            rest = f"Ask for lines from 1 to {total:,}, or leave" if total else "It is empty; leave"
            raise OutOfRange(
                f"`view_range` {asked} is out of range: the file has {count(total, 'line')}. {rest} `view_range` out."
            )
        head, tail = self._raw.ends()
        if not self._raw.left_out:
            return cap(number_lines(head + tail, wanted.start), self._limit).removesuffix("\n")
        half = self._limit // 2
        first_of_tail = wanted.start + self._kept_newlines - tail.count("\n")
        cut, newline, rest = tail.partition("\n")
        shown_tail = (cut + newline + number_lines(rest, first_of_tail + 1))[-half:]
        unended = 0 if tail.endswith("\n") else 1
        everything = self._raw.characters + prefix_characters(wanted.start, self._kept_newlines + unended)
        return joined(number_lines(head, wanted.start)[:half], everything - 2 * half, shown_tail).removesuffix("\n")


def number_lines(text: str, first: int) -> str:
    """Each line with its number in front; line ends stay as they are."""
    if not text:
        return ""
    lines = text.split("\n")
    ended = lines[-1] == ""
    body = "\n".join(numbered(line, number) for number, line in enumerate(lines[: len(lines) - ended], first))
    return body + ("\n" if ended else "")


def prefix_characters(first: int, lines: int) -> int:
    """How many characters the numbers of so many lines take."""
    total, number, last = 0, first, first + lines - 1
    while number <= last:
        width = max(6, len(str(number)))
        until = min(last, 10**width - 1)
        total += (until - number + 1) * (width + 1)
        number = until + 1
    return total


def _between(text: str, skip: int, stop: int | None) -> str:
    """The lines of the text after the first `skip` and before the one at index `stop`."""
    if stop is not None and text.count("\n") >= max(0, stop):
        text = text[: _after_lines(text, stop)]
    return text[_after_lines(text, skip) :]


def _after_lines(text: str, lines: int) -> int:
    """Where the text goes on after so many lines; its end if it has fewer line ends."""
    if lines <= 0:
        return 0
    parts = text.split("\n", lines)
    return len(text) - len(parts[lines]) if len(parts) > lines else len(text)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
