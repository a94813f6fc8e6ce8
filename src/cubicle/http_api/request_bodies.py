"""The body of a request, as the server behind it gives it fastest: in chunks, or taken from the socket itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from cubicle.http_api.uvicorn_http import HttpConnection, connection_of
from cubicle.machine.errors import SandboxError
from cubicle.machine.passed_file import FileThreads
from cubicle.machine.socket_splice import WORTH_A_MOVE, SocketSplice, SourceEnded
from cubicle.machine.upload_folder import UploadDraft
from cubicle.machine.zero_copy import TIMEOUT, BrokeOff
from cubicle.ports.program import ProgramConnection

_WORTH = 1024**2
"""Smaller bodies come the ordinary way."""
_PATIENCE = 0.2
"""Seconds in which enough for a move has to come: who sends slowly has each part passed on at once by the loop."""
_FAST = 64 * 1024
"""A part of a body that is as long as this comes from somebody who sends fast."""
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


async def pass_on(
    scope: Scope, receive: Receive, length: int, program: ProgramConnection, threads: FileThreads
) -> NoReturn:
    """Send the body as it comes; then notice that the client leaves.

    Raises ClientDisconnect when it does, and SandboxError when the program does not want all of it.
    """
    more = True
    client = connection_of(Request(scope)) if program.takes_splice else None
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if more and (body := message.get("body")):
            await program.send_body(body)
            length -= len(body)
            if client is not None and len(body) >= _FAST and length >= _WORTH:
                length = await _splice(client, length, program, threads)
        if more and not message.get("more_body"):
            more = False
            await program.end_body()


async def _splice(connection: HttpConnection, rest: int, program: ProgramConnection, threads: FileThreads) -> int:
    """Have the kernel move the rest of a body to a program, as long as it comes fast.

    How much is still to come, or 0 when it is not to be tried again. Raises ClientDisconnect.
    """
    first, splice = connection.at_hand(), None
    rest -= len(first)
    if rest >= _WORTH:
        with suppress(OSError):  # no descriptors are left
            splice = SocketSplice(connection.lend(), first, rest, threads, WORTH_A_MOVE)
    if splice is None:
        await program.send_body(first)
        return 0
    try:
        await program.splice_body(splice, _PATIENCE)
    except SourceEnded:
        connection.cut_off()
        raise ClientDisconnect from None
    except BrokeOff:
        return 0  # the program hung up
    except SandboxError:
        program.close()  # the pipe may hold what it waits for
        raise
    finally:
        try:
            await splice.released()
        finally:
            if splice.is_released:
                connection.take_back(splice.rest)
            else:  # cancelled twice: where the body ends is not known
                connection.cut_off()
    return splice.rest


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
