"""The body of a request, as the server behind it gives it fastest: in chunks, or poured from the socket itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from cubicle.http_api.uvicorn_http import HttpConnection, connection_of
from cubicle.machine.upload_folder import UploadDraft
from cubicle.machine.zero_copy import TIMEOUT

_WORTH = 1024**2
"""Smaller bodies come the ordinary way."""
_T = TypeVar("_T")


class LargeBody:
    """A body that can be had in both ways: chunk by chunk, or poured."""

    def __init__(self, request: Request, connection: HttpConnection, length: int) -> None:
        self._request = request
        self._connection = connection
        self._length = length

    def __aiter__(self) -> AsyncIterator[bytes]:
        return chunks_of(self._request)

    async def into(self, begins: Callable[[], UploadDraft]) -> tuple[os.stat_result, str]:
        first = self._connection.at_hand()
        if not first and "Expect" in self._request.headers:  # it waits for leave, and gets it by this
            message = await _in_time(self._request.receive())
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            first = message["body"]
        with self._connection.lent(self._length - len(first)) as pour:
            return await pour.into(begins, first)


async def _in_time(coming: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(TIMEOUT):
            return await coming
    except TimeoutError:
        raise ClientDisconnect from None


async def chunks_of(request: Request) -> AsyncIterator[bytes]:
    """The body as uvicorn gives it. Raises ClientDisconnect, also when nothing has come for long."""
    chunks = request.stream()
    while (chunk := await _in_time(anext(chunks, None))) is not None:
        yield chunk


def body_of(request: Request) -> AsyncIterable[bytes]:
    """The body as the server behind the request gives it fastest."""
    connection = connection_of(request)
    length = "" if "Transfer-Encoding" in request.headers else request.headers.get("Content-Length", "")
    known = int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
    if connection is not None and known >= _WORTH:
        return LargeBody(request, connection, known)
    return chunks_of(request)
