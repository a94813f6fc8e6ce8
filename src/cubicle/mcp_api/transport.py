"""One request of the handshake era and its answer, on one HTTP response.

The SDK's own stateless transport builds a connection with five tasks and four queues for every request, which costs
more than the command that is run. This hands the request straight to the SDK's kernel (`serve_one`), as the SDK does
by itself for the newer era, and writes what comes back as server-sent events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import anyio
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_one
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import DEFAULT_NEGOTIATED_VERSION
from pydantic import ValidationError
from starlette.requests import Request

from cubicle.core.problem import DRAINING
from cubicle.mcp_api import jsonrpc, raw_json
from cubicle.mcp_api.errors import is_unforeseen
from cubicle.mcp_api.jsonrpc import JsonRpcMessage
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

COMMENT = "cubicle.comment"
"""Where, in the ASGI scope, a tool finds how to send a comment line."""
CONNECTION = "cubicle.connection"
"""Where, in the ASGI scope, the server leaves the connection to the client."""

EVENT_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_PIECE = 256 * 1024
_TRANSPORT = TransportContext(kind="streamable-http", can_send_request=False)


class Unforeseen(Exception):
    """A method failed in a way that nobody foresaw, before its answer began: an HTTP 500. The log has the reason."""


class ClientConnection(Protocol):
    """What is known of the connection to a client."""

    transport: asyncio.Transport
    on_gone: Callable[[], None] | None
    """Called when the client goes away. One request is answered at a time."""

    def look_for_end(self) -> None: ...


class EventSender(Protocol):
    """Where the events of an answer go."""

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None: ...

    async def comment(self) -> None: ...


class Exchange:
    """What the SDK's kernel sees of a request (a `DispatchContext`): a client that can be sent notifications."""

    transport = _TRANSPORT
    can_send_request = False

    def __init__(self, request_id: int | str, request: Request, events: EventSender) -> None:
        self.request_id = request_id
        self.message_metadata = ServerMessageMetadata(request_context=request)
        self.cancel_requested = anyio.Event()
        self._events = events

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tools send their progress themselves, in batches."""

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        await self._events.notify(method, params)


class HttpAnswer:
    """The events of an answer on the response of its request, and nowhere else."""

    def __init__(self, request_id: int | str, send: Send) -> None:
        self._request_id = request_id
        self._send = send
        self.started = False

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        await self._write(_event({"jsonrpc": "2.0", "method": method, "params": dict(params or {})}), more=True)

    async def comment(self) -> None:
        await self._write([b": still here\r\n\r\n"], more=True)

    async def finish(self, outcome: Mapping[str, Any]) -> None:
        """Raises Unforeseen."""
        if is_unforeseen(outcome) and not self.started:
            raise Unforeseen
        await self._write(_event({"jsonrpc": "2.0", "id": self._request_id, **outcome}), more=False)

    async def _write(self, data: Sequence[bytes], *, more: bool) -> None:
        if not self.started:
            self.started = True
            size = [] if more else [(b"content-length", b"%d" % sum(map(len, data)))]
            await self._send({"type": "http.response.start", "status": 200, "headers": [*EVENT_HEADERS, *size]})
        await send_body(self._send, data, more=more)


async def send_body(send: Send, data: Sequence[bytes], *, more: bool) -> None:
    """Pieces of an answer, no more at once than can be copied in no time; each waits for the client."""
    part: list[bytes] = []
    size = 0
    for piece in data:
        for start in range(0, len(piece), _PIECE):
            if size >= _PIECE:
                await send({"type": "http.response.body", "body": b"".join(part), "more_body": True})
                part, size = [], 0
            part.append(piece[start : start + _PIECE])
            size += len(part[-1])
    await send({"type": "http.response.body", "body": b"".join(part), "more_body": more})


async def answer(
    server: Server[Any],
    message: JsonRpcMessage,
    version: str | None,
    scope: MutableMapping[str, Any],
    receive: Receive,
    send: Send,
) -> None:
    """Answer one POST. A client that goes away cancels its request. Raises Unforeseen."""
    if message.method is None or message.id is None:
        # Notifications and answers: nothing here listens to them, save the cancellation that the gate has seen.
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        return
    events = HttpAnswer(message.id, send)
    scope[COMMENT] = events.comment
    outcome: dict[str, Any] | None = None
    async with client_watched(scope, receive):
        outcome = await outcome_of(server, Exchange(message.id, Request(scope), events), message, version)
    if outcome is not None:
        await events.finish(outcome)


async def refuse_call(message: JsonRpcMessage, send: Send) -> None:
    """Answer a tool call by a result that says that the service is about to stop."""
    result = {"content": [{"type": "text", "text": DRAINING.detail}], "isError": True}
    await HttpAnswer(message.request_id, send).finish({"result": result})


@asynccontextmanager
async def client_watched(scope: Mapping[str, Any], receive: Receive) -> AsyncIterator[None]:
    """A client that goes away cancels the block."""
    with anyio.CancelScope() as waited_for:
        connection: ClientConnection | None = scope.get(CONNECTION)
        if connection is not None:
            with told_when_gone(connection, waited_for.cancel):
                yield
            return
        watching = start_task(_watch(receive, waited_for), name="client of a request")
        try:
            yield
        finally:
            watching.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([watching])


@contextmanager
def told_when_gone(connection: ClientConnection, tell: Callable[[], None]) -> Iterator[None]:
    """Within the block, call this when the client goes away; at once, if it is gone."""
    before, connection.on_gone = connection.on_gone, tell
    try:
        if connection.transport.is_closing():
            tell()
        else:
            connection.look_for_end()
        yield
    finally:
        if connection.on_gone is tell:
            connection.on_gone = before


async def _watch(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def outcome_of(
    server: Server[Any], exchange: Exchange, message: JsonRpcMessage, version: str | None
) -> dict[str, Any]:
    """The result or the error, as the answer's field; no text of an unforeseen exception is in it."""
    connection = Connection.from_envelope(version or DEFAULT_NEGOTIATED_VERSION, None, None)
    try:
        params = message.params if message.has_params else None
        result = await serve_one(
            server, exchange, str(message.method), params, connection=connection, lifespan_state=None
        )
    except MCPError as error:
        return error_outcome(error)
    except ValidationError:
        return {"error": {"code": jsonrpc.INVALID_PARAMS, "message": "Invalid request parameters"}}
    except Exception:
        log.exception("a request failed", extra={"method": message.method})
        return {"error": {"code": jsonrpc.INTERNAL_ERROR, "message": "The service failed; its log has the reason."}}
    return {"result": result}


def error_outcome(error: MCPError) -> dict[str, Any]:
    return {"error": error.error.model_dump(mode="json", by_alias=True, exclude_none=True)}


def encoded(message: dict[str, Any]) -> list[bytes]:
    """A message as the fields of an event."""
    return [b"event: message\r\ndata: ", *raw_json.dumps(message)]


def _event(message: dict[str, Any]) -> list[bytes]:
    return [*encoded(message), b"\r\n\r\n"]
