"""An answer that is made and sent while something is held open: a sandbox's lease, a file in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class HeldResponse(Response):
    """Enters the block, sends the response that it gives, and leaves it when that is done or the client gone."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Response]]) -> None:
        super().__init__()
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._make() as response:
            await response(scope, receive, send)
