"""Parsers of requests that begin in the middle of a body: its first part was taken from the socket without them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import httptools

_OF_HEAD = ("on_message_begin", "on_url", "on_header", "on_headers_complete")
_OTHERS = ("on_body", "on_message_complete")


def parser_within(protocol: object, rest: int = 0) -> httptools.HttpRequestParser:
    """A parser for which so many bytes of a body are to come, whose head the protocol knows; then the next request.

    What was taken is not shown to it: that would cost time for each byte of a body of any length.
    """
    knows_head = rest > 0

    def unless_known(name: str) -> Callable[..., None]:
        callback = getattr(protocol, name)

        def call(*arguments: bytes) -> None:
            if not knows_head:
                callback(*arguments)

        return call

    callbacks: object = protocol
    if rest:
        callbacks = SimpleNamespace(**{name: unless_known(name) for name in _OF_HEAD})
        callbacks.__dict__.update({name: getattr(protocol, name) for name in _OTHERS})
    parser = httptools.HttpRequestParser(callbacks)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
    if rest:
        parser.feed_data(b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % rest)
    knows_head = False
    return parser
