"""Ends the visits of ports that are under way when the service stops: a stream of events would last on."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from cubicle.http_api.uvicorn_http import cut_off
from cubicle.ports.running_visits import RunningVisits, VisitOver

_GRACE_SECONDS = 1.0
"""For requests that are done soon; less than the server waits for all of them."""


class EndedVisits:
    """Middleware around what answers under the names of ports. The server closes WebSockets by itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._visits = RunningVisits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._visits.run(self._app(scope, receive, send), None)
        except VisitOver:
            cut_off(scope)

    def end_soon(self) -> None:
        asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._visits.end_all)
