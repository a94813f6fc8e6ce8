"""HTTP as spoken to a program in the sandbox: h11 over a stream, bounded in size and time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable

import h11

from cubicle.machine.stream import Stream

_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024**2
_IDLE = 60.0
_BODY_PAUSE = 60.0
_FAREWELL = 2.0
_MAX_EARLY = 64 * 1024
"""What a caller may send of its next request before it has the answer to this one."""

_MAX_DRAINED = 1024 * 1024

Headers = Iterable[tuple[str, str]]


class BadGatewayRequest(Exception):
    """What came is not a request that can be answered."""


class GatewayHttp:
    """The service's side of one connection."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self.heard = asyncio.Event()
        """The whole request has been read."""

    async def request(self) -> h11.Request | None:
        """The next request, or None when the other side is done."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        self.heard.clear()
        if self._http.our_state is not h11.IDLE:
            return None
        event = await self._event(_IDLE)
        return event if isinstance(event, h11.Request) else None

    async def body(self) -> AsyncIterator[bytes]:
        """The request's body. Raises BadRequest when it is too large or breaks off."""
        size = 0
        while True:
            event = await self._event(_BODY_PAUSE)
            if isinstance(event, h11.EndOfMessage):
                self.heard.set()
                return
            if not isinstance(event, h11.Data):
                raise BadGatewayRequest("The request broke off.")
            size += len(event.data)
            if size > _MAX_BODY:
                raise BadGatewayRequest(f"A request may have {_MAX_BODY >> 20} MiB at most.")
            yield bytes(event.data)

    async def hung_up(self) -> None:
        """Returns when the other side goes away while it waits for its answer, or sends far more than it may."""
        await self.heard.wait()
        early = 0
        while early <= _MAX_EARLY and (data := await self._stream.read()):
            self._http.receive_data(data)
            early += len(data)

    async def head(self, status: int, headers: Headers) -> None:
        await self._send(h11.Response(status_code=status, headers=[*headers]))

    async def data(self, chunk: bytes) -> None:
        await self._send(h11.Data(data=chunk))

    async def end(self) -> None:
        await self._send(h11.EndOfMessage())

    @property
    def fresh(self) -> bool:
        """Nothing of an answer has been sent."""
        return self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    @property
    def over(self) -> bool:
        """What was sent last is whole. Otherwise the connection must break, so that half is not taken for all."""
        return self._http.our_state in (h11.IDLE, h11.DONE, h11.MUST_CLOSE, h11.CLOSED)

    async def refuse(self, status: int, kind: str, message: str, *, again: bool = False) -> None:
        """An error in a form that every agent understands, as the last answer of this connection."""
        error = {"type": kind, "message": message, "code": status, "status": kind.upper()}
        body = json.dumps({"type": "error", "error": error}).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-should-retry": "true" if again else "false",
        }
        await self.head(status, headers.items())
        await self.data(body)
        await self.end()

    async def finish(self) -> None:
        """No more from here; give the other side a moment to take the last of it."""
        self._stream.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                drained = 0
                while drained < _MAX_DRAINED and (data := await self._stream.read()):
                    drained += len(data)

    async def _event(self, limit: float) -> h11.Event | None:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise BadGatewayRequest(str(error)) from None
            if isinstance(event, h11.Event):
                return event
            if event is h11.PAUSED:
                return None
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                async with asyncio.timeout(limit):
                    self._http.receive_data(await self._stream.read())
            except TimeoutError:
                raise BadGatewayRequest("The request took too long.") from None

    async def _send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            await self._stream.write(data)
