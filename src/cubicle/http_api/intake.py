"""A large body of known length, taken from the socket itself once uvicorn has read the head of the request.

uvicorn copies a body four times and wakes the loop for every 64 KB of it, which costs more than to hash it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import cast

import httptools
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cubicle.sandbox.host_folder import HostDraft
from cubicle.sandbox.pour import Pour

_SCOPE = "cubicle.connection"
_WORTH = 1024**2
"""Smaller bodies come the ordinary way."""
_NOTHING = bytes(64 * 1024)


class Connection(HttpToolsProtocol):
    """uvicorn's, which lends its socket to the application."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, object], self.scope)[_SCOPE] = self

    def at_hand(self) -> bytes:
        """What came with the head of the request. Raises ClientDisconnect."""
        if self.cycle.disconnected:
            raise ClientDisconnect
        taken = bytes(self.cycle.body)
        self.cycle.body.clear()
        return taken

    @contextmanager
    def lent(self, rest: int) -> Iterator[Pour]:
        """Nothing else reads from the client meanwhile; then it goes on behind what was taken."""
        self.flow.pause_reading()
        pour = Pour(self.transport.get_extra_info("socket").fileno(), rest)
        try:
            yield pour
        finally:
            pour.close()
            if pour.rest:
                self._pass_over(rest - pour.rest)
            else:
                self.parser = httptools.HttpRequestParser(self)  # as it is behind the body of a request
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self.on_message_complete()

    def _pass_over(self, taken: int) -> None:
        """The parser has to know how much of the body is gone: the client may still be sending."""
        while taken > 0 and self.parser is not None:
            self.parser.feed_data(_NOTHING[:taken])
            self.cycle.body.clear()
            taken -= len(_NOTHING)


class LargeBody:
    """A body that can be had in both ways: chunk by chunk, or poured."""

    def __init__(self, request: Request, connection: Connection, length: int) -> None:
        self._request = request
        self._connection = connection
        self._length = length

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._request.stream()

    async def into(self, begins: Callable[[], HostDraft]) -> tuple[os.stat_result, str]:
        first = self._connection.at_hand()
        if not first and "Expect" in self._request.headers:  # it waits for leave, and gets it by this
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            first = message["body"]
        with self._connection.lent(self._length - len(first)) as pour:
            return await pour.into(begins, first)


def connection_of(request: Request) -> Connection | None:
    """The connection behind the request, if its socket carries the plain bytes."""
    connection = request.scope.get(_SCOPE)
    return connection if isinstance(connection, Connection) and connection.scheme == "http" else None


def body_of(request: Request) -> AsyncIterable[bytes]:
    """The body as the server behind the request gives it fastest."""
    connection = connection_of(request)
    length = "" if "Transfer-Encoding" in request.headers else request.headers.get("Content-Length", "")
    known = int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
    if connection is not None and known >= _WORTH:
        return LargeBody(request, connection, known)
    return request.stream()
