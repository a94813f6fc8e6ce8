"""Limits on a request that hold before anything looks into it: its headers, and the structure of its JSON."""

from __future__ import annotations

from cubicle.core.problem import Problem

MAX_HEADERS_SIZE = 64 * 1024
MAX_HEADER_LINES = 100
MAX_HEADER_VALUE = 8 * 1024
MAX_URL = 8 * 1024
MAX_COOKIES = 8 * 1024
"""Of all Cookie lines of a request together."""
MAX_PIPELINED = 512
"""Requests of one connection that may wait for the answer before them."""

MAX_BODY = 64 * 1024
"""Of every route that has no limit of its own."""
MAX_JSON_VALUES = 10_000
MAX_JSON_DEPTH = 64
MAX_JSON_ESCAPES = 2_000_000
"""A parser takes 16 to 50 ns for each, and nothing else runs meanwhile; a text of 60 MB has a million line ends."""

URL_TOO_LONG = Problem(414, f"The URL is over the limit of {MAX_URL} bytes.")
HEADERS_TOO_LARGE = Problem(
    431,
    f"The request's headers are over the limit: {MAX_HEADERS_SIZE} bytes in {MAX_HEADER_LINES} lines, "
    f"{MAX_HEADER_VALUE} bytes in one of them and in all cookies together.",
)
SMALL_CHUNKS = Problem(400, "The body comes in too many chunks of a few bytes. Send larger ones.")
TOO_MANY_PIPELINED = Problem(429, f"At most {MAX_PIPELINED} requests may wait on one connection. Open another one.")

_MAX_SMALL_CHUNKS = 512
_MEAN_CHUNK = 32
"""Bytes of a chunk, on average, from that many on."""
_OPENERS = b"[{"
_STRUCTURE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")


class TooComplex(ValueError):
    """The JSON has more values, or nests deeper, than any message needs."""


class HeaderLimits:
    """Counts what one request's headers take. Each method says what is over, or None."""

    def __init__(self) -> None:
        self._lines = 0
        self._size = 0
        self._url = 0
        self._cookies = 0

    def add_url(self, part: bytes) -> Problem | None:
        self._url += len(part)
        return URL_TOO_LONG if self._url > MAX_URL else None

    def add_header(self, name: bytes, value: bytes) -> Problem | None:
        self._lines += 1
        self._size += len(name) + len(value)
        if name.lower() == b"cookie":
            self._cookies += len(value)
        over = self._lines > MAX_HEADER_LINES or self._size > MAX_HEADERS_SIZE or len(value) > MAX_HEADER_VALUE
        return HEADERS_TOO_LARGE if over or self._cookies > MAX_COOKIES else None


class ChunkLimits:
    """Counts the pieces in which a body comes: each costs as much as a kilobyte."""

    def __init__(self) -> None:
        self._size = 0
        self._pieces = 0

    def add(self, size: int) -> Problem | None:
        self._size += size
        self._pieces += 1
        return SMALL_CHUNKS if self._pieces > _MAX_SMALL_CHUNKS and self._size < self._pieces * _MEAN_CHUNK else None


class JsonStructure:
    """Counts values and depth of JSON as it comes, before it is built: a body of brackets costs a parser a hundred
    times its size. What stands in strings does not count. Not a check of the syntax: the parser does that."""

    def __init__(self, max_values: int = MAX_JSON_VALUES) -> None:
        self._max_values = max_values
        self._in_string = False
        self._backslash = b""
        self._values = 0
        self._depth = 0
        self._escapes = 0

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes. Raises TooComplex."""
        data = self._backslash + chunk
        # A backslash at the very end belongs to what comes next.
        ending = len(data) - len(data.rstrip(b"\\"))
        self._backslash = b"\\" if ending % 2 else b""
        if self._backslash:
            data = data[:-1]
        self._escapes += data.count(b"\\")
        if self._escapes > MAX_JSON_ESCAPES:
            raise TooComplex(f"The JSON has more than {MAX_JSON_ESCAPES} backslashes. Upload the file instead.")
        parts = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b'"'.join(parts[1 if self._in_string else 0 :: 2])
        if len(parts) % 2 == 0:
            self._in_string = not self._in_string
        self._values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if self._values > self._max_values:
            raise TooComplex(f"The JSON has more than {self._max_values} values.")
        self._nest(outside.translate(_STRUCTURE, _NO_BRACKETS))

    def _nest(self, brackets: bytes) -> None:
        for bracket in brackets:  # few: each opening one was counted above
            self._depth = self._depth + 1 if bracket in _OPENERS else max(0, self._depth - 1)
            if self._depth > MAX_JSON_DEPTH:
                raise TooComplex(f"The JSON nests deeper than {MAX_JSON_DEPTH} levels.")
