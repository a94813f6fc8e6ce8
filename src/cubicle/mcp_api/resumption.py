"""Answers of the handshake era that a client can resume: a tool call whose connection is lost goes on for a while.

A client can resume when it has an MCP session and speaks revision 2025-11-25, in which clients come back by themselves
with `Last-Event-ID`, or when its session has done so before. The events of other sessions have ids as well, but their
calls end with the connection.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from functools import partial
from typing import Any, Self
from weakref import WeakSet

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from mcp.server.lowlevel import Server
from starlette.requests import Request

from cubicle.core import event_ids, problem
from cubicle.core.call_identity import request_identity
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import Busy
from cubicle.mcp_api import jsonrpc
from cubicle.mcp_api.direct_calls import DirectCall
from cubicle.mcp_api.errors import McpRefused
from cubicle.mcp_api.event_streams import EventReader, EventStream, EventStreams
from cubicle.mcp_api.jsonrpc import JsonRpcMessage
from cubicle.mcp_api.progress import ProgressStream
from cubicle.mcp_api.request_context import CALL_DONE, CALL_ID, result_of
from cubicle.mcp_api.running_calls import CAN_GO_ON, CallCancelled, RunningCall
from cubicle.mcp_api.sessions import SessionNotes
from cubicle.mcp_api.transport import (
    COMMENT,
    EVENT_HEADERS,
    ClientConnection,
    Exchange,
    Receive,
    Send,
    client_watched,
    encoded,
    outcome_of,
    send_body,
)
from cubicle.tasks import start_task
from cubicle.tools.base import Answer

log = logging.getLogger(__name__)

HEADER = "Last-Event-ID"
RETRY_MILLISECONDS = 2000
"""After which a client comes back. The official ones try twice: after a crash the service must be back by then. When
it stops in an orderly way, it tells them to come later."""
_RETRY_AFTER_RESTART = 15_000
_PRIMED_SINCE = "2025-11-25"
"""Clients of earlier revisions take an event without data for a broken message."""
_UNKNOWN = problem.bad_request(f"The header {HEADER} holds no id of an event that this chat and session were sent.")
_GONE = "The answer to this call is not there any more. Look at what the call left behind before you repeat it."
_ABANDONED = "The connection was lost, and nobody came back for the answer in time: the call was ended."


LeftBehind = Callable[[Chat, str, str], Awaitable[RunningCall | Answer | Mapping[str, Any] | None]]
"""Finds a call by its chat, its id and the identity of its request: itself, its answer, or what its request gets."""


class StoredAnswer:
    """The events of an answer, which are kept."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        await self._stream.put(encoded({"jsonrpc": "2.0", "method": method, "params": dict(params or {})}))

    async def comment(self) -> None:
        self._stream.beat()


class ResumableAnswers:
    """Answers tool calls so that they can be resumed. Its block ends those that are under way."""

    def __init__(
        self, key: bytes, seconds: float, left_behind: LeftBehind | None = None, *, has_journal: bool = False
    ) -> None:
        """`has_journal`: answers can be had from there, too."""
        self._key = key
        self._has_journal = has_journal
        self._left_behind = left_behind
        self._seconds = seconds
        self._streams = EventStreams(seconds)
        self._tasks: set[asyncio.Task[None]] = set()
        self._going_on: WeakSet[EventStream] = WeakSet()
        """Those whose client understands an event without a message, and whose call the next service goes on with."""
        self._came_back: SessionNotes[bool] = SessionNotes()
        """The sessions whose clients come back for their answers."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._streams.close()

    def part(self) -> set[str]:
        """The service ends: clients of calls that go on are sent away until the next one is there. Whose calls."""
        for stream in self._going_on:
            stream.part(min(_RETRY_AFTER_RESTART, int(self._seconds * 500)))
        return {stream.id for stream in self._going_on if stream.parted}

    def takes(self, message: JsonRpcMessage, caller: Caller) -> bool:
        """Whether this answer, in an MCP session, can be resumed."""
        return (
            self._seconds > 0
            and message.method == "tools/call"
            and message.id is not None
            and event_ids.is_short(message.id)
            and self._streams.has_room(caller.chat)
        )

    async def answer(
        self,
        server: Server[Any],
        message: JsonRpcMessage,
        version: str | None,
        caller: Caller,
        session: str,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer one POST that `takes` has let pass."""
        stream, waited_for = self._open(message, version, caller, session)
        events = StoredAnswer(stream)
        exchange = Exchange(message.request_id, Request(scope), events)
        scope.update({COMMENT: events.comment, CALL_ID: stream.id, CALL_DONE: stream.hurry})
        with stream.reading(-1) as reader:
            outcome = partial(outcome_of, server, exchange, message, version)
            self._start(self._work(outcome, exchange.request_id, stream, waited_for))
            await _send_events(reader, scope, receive, send)
        self._forget_soon(stream)

    async def answer_call(
        self,
        call: DirectCall,
        message: JsonRpcMessage,
        version: str | None,
        session: str,
        connection: ClientConnection,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        """The same without the SDK. A short call needs no task but its own, and its answer is one piece."""
        stream, waited_for = self._open(message, version, call.caller, session)
        try:
            await self._answer_in(stream, waited_for, call, message.request_id, connection, scope, receive, send)
        finally:
            call.note()
        self._forget_soon(stream)

    async def _answer_in(
        self,
        stream: EventStream,
        waited_for: anyio.CancelScope,
        call: DirectCall,
        id: int | str,
        connection: ClientConnection,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        with stream.reading(-1) as reader:
            try:
                await call.begin(StoredAnswer(stream), stream.id, stream.hurry)
            except BaseException:
                self._streams.drop(stream)
                raise
            outcome: dict[str, Any] | None = None
            try:
                await call.settles_soon(connection)
                if call.is_settled and not stream.parted:
                    outcome = await call.outcome()
            finally:
                if outcome is None:
                    self._start(self._work(call.outcome, id, stream, waited_for))
            if outcome is not None:
                self._finish(stream, id, outcome)
            await _send_events(reader, scope, receive, send)

    def _open(
        self, message: JsonRpcMessage, version: str | None, caller: Caller, session: str
    ) -> tuple[EventStream, anyio.CancelScope]:
        """The stream of an answer, and what ends the work on it when nobody waits for it any more."""
        primed = version is not None and version >= _PRIMED_SINCE
        can_resume = primed or self._came_back.get(caller.chat.tenant, session) is not None
        id, request = secrets.token_hex(8), message.request_id
        prefix = event_ids.prefix(self._key, caller.chat, session, id, request, caller.conversation)
        waited_for = anyio.CancelScope()
        grace = self._seconds if can_resume else 0.0
        stream = EventStream(id, caller.chat, session, prefix, grace, waited_for.cancel)
        if primed:
            stream.prime(RETRY_MILLISECONDS)
            if message.params.get("name") in CAN_GO_ON:
                self._going_on.add(stream)
        self._streams.add(stream)
        return stream, waited_for

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = start_task(work, name="resumable call")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(
        self,
        answered: Callable[[], Awaitable[dict[str, Any]]],
        request: int | str,
        stream: EventStream,
        waited_for: anyio.CancelScope,
    ) -> None:
        outcome = _abandoned()
        try:
            with waited_for:
                outcome = await answered()
        except BaseException:
            self._streams.drop(stream)  # the service ends; a client that comes back asks the next one
            raise
        if stream.parted:
            self._streams.drop(stream)  # the next service has the answer
            return
        stream.was_abandoned = waited_for.cancelled_caught
        self._finish(stream, request, outcome)

    def _finish(self, stream: EventStream, request: int | str, outcome: dict[str, Any]) -> None:
        stream.finish(encoded({"jsonrpc": "2.0", "id": request, **outcome}))
        self._streams.keep(stream)

    def _forget_soon(self, stream: EventStream) -> None:
        if self._has_journal:
            self._streams.forget_soon(stream)

    async def resume(
        self, id: str, caller: Caller, session: str, scope: Mapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Answer one GET: what came after this event. Raises McpRefused."""
        event = event_ids.parse(self._key, caller.chat, session, id)
        if event is None:
            raise McpRefused(_UNKNOWN)
        self._came_back.put(caller.chat.tenant, session, True)
        stream = self._streams.find(event.call)
        if stream is None or stream.was_abandoned:
            await self._recover(event, caller, session, scope, receive, send)
        else:
            await self._go_on(stream, event, scope, receive, send)

    async def _go_on(
        self, stream: EventStream, event: event_ids.EventId, scope: Mapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """What came after an event of a stream that is here. Raises McpRefused."""
        if event.number > stream.last:
            raise McpRefused(_UNKNOWN)
        if stream.ended and event.number == stream.last:
            await _send_nothing(send)
            return
        with stream.reading(event.number) as reader:
            await _send_events(reader, scope, receive, send)

    async def _recover(
        self,
        event: event_ids.EventId,
        caller: Caller,
        session: str,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        """For an answer that this service has forgotten, or that one before it began: ask the journal.

        The output meanwhile is not told again. What is not known either is an error, which its request gets.
        """
        identity = request_identity(session, event.request).text
        found = await self._left_behind(caller.chat, event.call, identity) if self._left_behind is not None else None
        stream = self._streams.find(event.call)
        if stream is not None and not stream.was_abandoned:  # another request has recovered it meanwhile
            await self._go_on(stream, event, scope, receive, send)
            return
        if isinstance(found, RunningCall):
            waited_for = anyio.CancelScope()
            names = (session, event.call, event.request, caller.conversation)
            prefix = event_ids.prefix(self._key, caller.chat, *names)
            stream = EventStream(event.call, caller.chat, session, prefix, self._seconds, waited_for.cancel)
            if not self._streams.has_room(caller.chat):
                found.expect_followers()  # nobody else may come for it
                raise Busy("Too many answers are resumed already. Try again when some of them are done.")
            stream.go_on_after(event.number)
            self._streams.forget(stream.id)
            self._streams.add(stream)
            with stream.reading(event.number) as reader:
                self._start(self._follow(found, event.request, stream, waited_for))
                await _send_events(reader, scope, receive, send)
            return
        outcome = _outcome(found)
        if found is None and stream is not None:
            outcome = _abandoned()
        await _send_last([*encoded({"jsonrpc": "2.0", "id": event.request, **outcome}), b"\r\n\r\n"], send)

    async def _follow(
        self, call: RunningCall, request: int | str, stream: EventStream, waited_for: anyio.CancelScope
    ) -> None:
        """The answer of a call that goes on, as the event of a stream; a sign of life now and then."""

        async def beat(_text: str, _seconds: float) -> None:
            stream.beat()

        async def answered() -> dict[str, Any]:
            following = ProgressStream(beat, beat, flush=False)
            with call.followed(following.report):
                await following.until(call)
            return _outcome_of_call(call)

        await self._work(answered, request, stream, waited_for)

    def end_session(self, tenant: str, session: str) -> None:
        """The session was ended: nobody comes back for what runs in it."""
        for stream in self._streams.of_session(tenant, session):
            stream.abandon()


def _abandoned() -> dict[str, Any]:
    return {"error": {"code": jsonrpc.REQUEST_CANCELLED, "message": _ABANDONED}}


def _outcome(answer: Answer | Mapping[str, Any] | None) -> dict[str, Any]:
    if answer is None:
        return {"error": {"code": jsonrpc.ANSWER_GONE, "message": _GONE}}
    return {"result": result_of(answer) if isinstance(answer, Answer) else answer}


def _outcome_of_call(call: RunningCall) -> dict[str, Any]:
    try:
        return _outcome(call.answer())
    except CallCancelled:
        return {"error": {"code": jsonrpc.REQUEST_CANCELLED, "message": "Request cancelled"}}
    except Exception:
        log.exception("a call that was taken up failed", extra={"tool": call.tool})
        return {"error": {"code": jsonrpc.INTERNAL_ERROR, "message": "The service failed; its log has the reason."}}


async def _send_events(reader: EventReader, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """The events of a stream as one response, until it is complete, the client leaves or another one reads."""
    async with client_watched(scope, receive):
        pieces = await reader.next()
        size = [(b"content-length", b"%d" % sum(map(len, pieces)))] if reader.is_complete else []
        await send({"type": "http.response.start", "status": 200, "headers": [*EVENT_HEADERS, *size]})
        while pieces and not reader.is_complete:
            await send_body(send, pieces, more=True)
            await checkpoint_if_cancelled()  # what is sent to a client that has left goes nowhere, and without a word
            pieces = await reader.next()
        await send_body(send, pieces, more=False)
        await checkpoint_if_cancelled()
        await reader.next()


async def _send_last(pieces: list[bytes], send: Send) -> None:
    size = (b"content-length", b"%d" % sum(map(len, pieces)))
    await send({"type": "http.response.start", "status": 200, "headers": [*EVENT_HEADERS, size]})
    await send_body(send, pieces, more=False)


async def _send_nothing(send: Send) -> None:
    """The client has had the answer. 204 says that there is no use in coming again."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
