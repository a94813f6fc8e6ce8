"""Parsers that begin in the middle of a body."""

from __future__ import annotations

import httptools
import pytest

from cubicle.http_api.body_parser import parser_within

NEXT = b"POST /next HTTP/1.1\r\nA: b\r\nContent-Length: 3\r\n\r\nabc"


class Heard:
    def __init__(self) -> None:
        self.told: list[tuple[str, bytes]] = []
        self.url = self.body = b""

    def on_message_begin(self) -> None:
        self.told.append(("begin", b""))

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.told.append((name.decode(), value))

    def on_headers_complete(self) -> None:
        self.told.append(("head", self.url))
        self.url = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.told.append(("complete", self.body))
        self.body = b""


OF_NEXT = [("begin", b""), ("A", b"b"), ("Content-Length", b"3"), ("head", b"/next"), ("complete", b"abc")]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("rest", [0, 1, 5, 300])
def test_the_rest_of_the_body_and_then_the_next_requests(rest: int, size: int) -> None:
    heard = Heard()
    parser = parser_within(heard, rest)
    assert not heard.told
    sent = b"x" * rest + NEXT * 2
    for start in range(0, len(sent), size):
        parser.feed_data(sent[start : start + size])
    assert heard.told == ([("complete", b"x" * rest)] if rest else []) + OF_NEXT * 2


def test_a_body_of_any_length() -> None:
    heard = Heard()
    parser = parser_within(heard, 10**18)
    parser.feed_data(NEXT)
    assert heard.body == NEXT
    assert not heard.told


def test_what_is_no_request_behind_it_is_refused() -> None:
    parser = parser_within(Heard(), 2)
    with pytest.raises(httptools.HttpParserError):
        parser.feed_data(b"xxnonsense\r\n\r\n")
