"""An answer that is made and sent while something is held open: a sandbox's lease, a file in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send


class HeldResponse(Response):
    """Enters the block, sends the response that it gives, and leaves it when that is done or the client gone.

    Of a stream, which may have no end, HEAD gets the headers alone.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Response]]) -> None:
        super().__init__()
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._make() as response:
            if scope["method"] == "HEAD" and isinstance(response, StreamingResponse):
                await _send_head(response, send)
            else:
                await response(scope, receive, send)


def unmade(headers: Mapping[str, str], media_type: str | None = None) -> StreamingResponse:
    """For HEAD, in the place of a stream that nobody asked for: how long it would be is not known."""
    return StreamingResponse((), headers=headers, media_type=media_type)


async def _send_head(response: StreamingResponse, send: Send) -> None:
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": b""})
