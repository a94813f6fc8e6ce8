"""A call that runs, as one request follows it: its live output, then its answer."""

from __future__ import annotations

import asyncio
from functools import partial

from mcp.shared.exceptions import MCPError

from cubicle.mcp_api import jsonrpc
from cubicle.mcp_api.cancellation import InFlight, RequestKey
from cubicle.mcp_api.request_context import CallRequest, progress_stream
from cubicle.mcp_api.running_calls import CallCancelled, RunningCall
from cubicle.mcp_api.transport import ClientConnection, told_when_gone
from cubicle.tools.base import Answer

SOON_SECONDS = 0.05
"""Most calls are over by then, and have sent nothing before their answer."""


class FollowedCall:
    """Follows from the start, until `leave`. To cancel the request is to cancel the call."""

    def __init__(self, running: RunningCall, request: CallRequest, in_flight: InFlight) -> None:
        # A client of the newer era cancels by hanging up: no notification can mean its request.
        session = "" if request.is_modern else request.session
        key = RequestKey(session, request.caller.chat, str(request.id))
        in_flight.add(key, running)
        running.asked_for(partial(in_flight.remove, key, running))
        if request.on_done is not None:
            running.on_settled(request.on_done)
        self._on_done = request.on_done
        self._running = running
        self._following = progress_stream(request)
        self._follows = True
        running.follow(self._following.report)

    @property
    def is_settled(self) -> bool:
        return self._running.is_settled

    async def settles_soon(self, connection: ClientConnection) -> None:
        """Wait until the call is settled; not for long, nor for a client that is gone. Nothing is sent meanwhile."""
        if self._running.is_settled:
            return
        loop = asyncio.get_running_loop()
        news = loop.create_future()

        def wake() -> None:
            if not news.done():
                news.set_result(None)

        self._running.on_settled(wake)
        late = loop.call_later(SOON_SECONDS, wake)
        try:
            with told_when_gone(connection, wake):
                await news
        finally:
            late.cancel()
            self._running.forget_on_settled(wake)

    async def answer(self) -> Answer:
        """Send the output until the call is settled. Raises what the tool raised, and MCPError for one that was
        cancelled."""
        try:
            await self._following.until(self._running)
        finally:
            self.leave()
        try:
            return self._running.answer()
        except CallCancelled:
            raise MCPError(jsonrpc.REQUEST_CANCELLED, "Request cancelled") from None

    def leave(self) -> None:
        if self._follows:
            self._follows = False
            if self._on_done is not None:
                self._running.forget_on_settled(self._on_done)
            self._running.leave(self._following.report)
