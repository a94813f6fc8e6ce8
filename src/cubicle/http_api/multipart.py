"""The one file of a multipart form, taken out as it streams in: nothing is kept on the way."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

FIELD = b"file"
_MAX_PARTS = 100


class BadForm(ValueError):
    """The body is not a form with one field `file`; the message says what is wrong."""


def is_multipart(content_type: str) -> bool:
    return parse_options_header(content_type)[0] == b"multipart/form-data"


async def file_of(content_type: str, body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The bytes of the field `file`. Other fields are passed over; a second file, or none, is BadForm."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 1 <= len(boundary) <= 200:
        raise BadForm("The form names no boundary.")
    form = _Form(boundary)
    async for chunk in body:
        for piece in form.feed(chunk):
            yield piece
    form.close()


class _Form:
    """Callbacks of the parser: which part it is in, and the bytes of the file that came since the last look."""

    def __init__(self, boundary: bytes) -> None:
        self._header, self._value = bytearray(), bytearray()
        self._disposition = b""
        self._parts = 0
        self._inside = self._found = self._ended = False
        self._pieces: list[bytes] = []
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )

    def feed(self, chunk: bytes) -> list[bytes]:
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise BadForm("The body is not a well-formed multipart form.") from None
        pieces, self._pieces = self._pieces, []
        return pieces

    def close(self) -> None:
        if not self._ended:
            raise BadForm("The form breaks off before its end.")
        if not self._found:
            raise BadForm("The form has no field `file`.")

    def _part_begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise BadForm(f"The form has more than {_MAX_PARTS} fields.")
        self._disposition = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]  # the parser itself limits headers, their number and their size

    def _header_end(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _headers_finished(self) -> None:
        name = parse_options_header(self._disposition)[1].get(b"name")
        if name == FIELD and self._found:
            raise BadForm("The form has more than one field `file`.")
        self._inside = name == FIELD
        self._found |= self._inside

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._inside:
            self._pieces.append(data[start:end])

    def _part_end(self) -> None:
        self._inside = False

    def _end(self) -> None:
        self._ended = True
