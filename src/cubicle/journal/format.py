"""The lines of a journal, and the chain of their hashes. Pure.

    {"n":7,"at":1790000000.123,"kind":"end","fields":{…},"prev":"<hash of the line before>","hash":"<SHA-256>"}

`hash` is the SHA-256 of the line without it: `{"n":7,…,"prev":"…"}`. Every line is ASCII. Numbers go up by one. A line
of the kind `gap` says what is missing, and takes no number of its own: it has that of the last entry that it stands
for, or that of the entry before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic_core import to_json

GAP = "gap"
NO_HASH = "0" * 64
"""What the first line of a journal has as the hash before it."""
MAX_LINE = 256 * 1024
"""Bytes of a line; what would be longer is shortened."""

_NAMES = ("call", "tool", "identity", "arguments_hash", "command", "ttl", "begun", "run", "what")
_ALWAYS = (*_NAMES, "ending", "final", "error")
"""Fields without which an entry is of no use: they stay, however much else is too long."""
_MAX_ALWAYS = 16 * 1024
_MAX_TEXT = 2_000
_MAX_ITEMS = 50
_MAX_DEPTH = 6
_TAIL = len(',"hash":""}') + 64
_HEAD = re.compile(rb'\{"n":(\d{1,15}),"at":(-?\d{1,15}\.\d{1,6}),"kind":"([a-z_]{1,32})","fields":\{')
_END = re.compile(rb'\},"prev":"([0-9a-f]{64})","hash":"([0-9a-f]{64})"\}')
_END_LENGTH = len('},"prev":"","hash":""}') + 128

_encode = json.JSONEncoder(separators=(",", ":"), default=str, check_circular=False).encode


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened in a chat."""

    number: int
    at: float
    """Unix time, as the host's clock had it: it may go backwards, numbers do not."""
    kind: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Line:
    """What the chain needs of a line whose own hash is right."""

    number: int
    at: float
    kind: str
    prev: str
    hash: str


def body(at: float, kind: str, fields: Mapping[str, object]) -> bytes:
    """The part of a line that does not depend on its place. What is too long is shortened, and says so."""
    return b'"at":%.3f,"kind":"%b","fields":%b' % (at, kind.encode(), _encode_quickly(fields) or _encode_any(fields))


def _encode_quickly(fields: Mapping[str, object]) -> bytes:
    """Fields as nearly all are: short, ASCII, and of JSON's own types. Empty for all others."""
    try:
        text = to_json(fields, inf_nan_mode="constants")
    except (ValueError, RecursionError):
        return b""
    return text if len(text) <= MAX_LINE - 512 and text.isascii() else b""


def _encode_any(fields: Mapping[str, object]) -> bytes:
    try:
        text = _encode(fields)
        length = len(text)
        if length > MAX_LINE - 512:
            text = _encode({name: _shortened(value) for name, value in fields.items()} | {"shortened": length})
        if len(text) > MAX_LINE - 512:
            kept = {name: fields[name] for name in _ALWAYS if name in fields and size(fields[name]) <= _MAX_ALWAYS}
            text = _encode(kept | {"shortened": length})
    except (ValueError, TypeError, RecursionError):
        text = _encode({"unreadable": True})
    return text.encode()


def size(value: object) -> int:
    """Bytes that a value takes in a line: up to twelve for each character of a text."""
    return len(_encode(value))


def most_size(text: str) -> int:
    """Bytes that a text takes at most; told without a look at it."""
    return len(text) * 12 + 2


def line(number: int, body: bytes, prev: str) -> tuple[bytes, str]:
    """A whole line with its line break, and its hash."""
    start = b'{"n":%d,%b,"prev":"%b"' % (number, body, prev.encode())
    hash = hashlib.sha256(start + b"}").hexdigest()
    return b'%b,"hash":"%b"}\n' % (start, hash.encode()), hash


def check(text: bytes) -> Line | None:
    """A line (without its line break), if it is one and nobody changed it."""
    head, end = _HEAD.match(text), _END.fullmatch(text[-_END_LENGTH:])
    if head is None or end is None or len(text) > MAX_LINE:
        return None
    digest = hashlib.sha256(memoryview(text)[:-_TAIL])
    digest.update(b"}")
    if digest.hexdigest().encode() != end[2]:
        return None
    return Line(int(head[1]), float(head[2]), head[3].decode(), end[1].decode(), end[2].decode())


def entry(text: bytes) -> Entry | None:
    """What a line says; None for what is none. Does not look at its hash."""
    try:
        found = json.loads(text)
        number, at, kind, fields = found["n"], found["at"], found["kind"], found["fields"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(number, int) or not isinstance(at, int | float) or not isinstance(kind, str):
        return None
    return Entry(number, float(at), kind, fields) if isinstance(fields, dict) else None


def gap(why: str, first: int, last: int, hash: str = "") -> dict[str, object]:
    """The fields of a gap: these entries are missing, and the line after them has `hash` as the hash before it."""
    return {"why": why, "first": first, "last": last, "hash": hash}


@dataclass(frozen=True, slots=True)
class Break:
    """A place where the chain does not hold: entries are missing, or were changed."""

    first: int
    last: int
    hash: str
    """What the line after the break has as the hash before it."""
    noted: str
    """What a gap says about it; empty if no line does."""


class Chain:
    """Takes the good lines of a journal in their order, and finds where the chain does not hold."""

    def __init__(self) -> None:
        self.number = 0
        self.hash = NO_HASH
        self.first: int | None = None
        self._breaks: list[tuple[int, int, str]] = []
        self._noted: dict[str, str] = {}

    def add(self, line: Line, text: bytes) -> None:
        said: Mapping[str, object] = {}
        if line.kind == GAP and (found := entry(text)) is not None:
            said = found.fields
            self._noted[str(said.get("hash", ""))] = str(said.get("why", ""))
        follows = self.number if line.kind == GAP else self.number + 1
        skipped = line.kind == GAP and said.get("first") == self.number + 1 and said.get("last") == line.number
        if line.prev != self.hash or (line.number != follows and not skipped):
            self._breaks.append((self.number + 1, line.number - (line.kind != GAP), line.prev))
        self.first = line.number if self.first is None else self.first
        self.number, self.hash = max(line.number, self.number), line.hash

    def breaks(self) -> list[Break]:
        return [Break(first, last, hash, self._noted.get(hash, "")) for first, last, hash in self._breaks]


def _shortened(value: object, depth: int = 0) -> object:
    """The same with short texts and lists."""
    match value:
        case str():
            return value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT]
        case Mapping() if depth < _MAX_DEPTH:
            some = list(value.items())[:_MAX_ITEMS]
            return {str(name)[:100]: _shortened(one, depth + 1) for name, one in some}
        case list() | tuple() if depth < _MAX_DEPTH:
            return [_shortened(one, depth + 1) for one in value[:_MAX_ITEMS]]
        case None | bool() | int() | float():
            return value
    return None
