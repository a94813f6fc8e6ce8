"""The gate before the SDK: what this service decides differently about a request, before the protocol sees it.

Order of refusals: host, 429 too many wrong keys, 401 key, 400 chat id, then for POST 415 Accept, 415 Content-Type,
413 size, 400 not a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from mcp.server.lowlevel import Server
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic_core import from_json

from cubicle.chat.access_watch import AccessOver, AccessWatch
from cubicle.chat.authentication import Authentication, Shown, Who
from cubicle.chat.authentication import Refused as NotLetIn
from cubicle.core import event_ids, problem
from cubicle.core.accept import accepts_mcp, is_json
from cubicle.core.caller import Caller, Headers, NotYourChat, chat_id, identify, in_conversation, in_named
from cubicle.core.chat import BadChatId, Chat
from cubicle.core.chat_isolation import ChatIdMissing, Isolation
from cubicle.core.identity import Identity
from cubicle.core.problem import Problem
from cubicle.core.request_limits import JsonStructure, TooComplex
from cubicle.fairness.fair_slots import Busy, FairSlots
from cubicle.log import note, note_caller
from cubicle.machine.zero_copy import TIMEOUT
from cubicle.mcp_api import jsonrpc
from cubicle.mcp_api.cancellation import InFlight, RequestKey
from cubicle.mcp_api.direct_calls import DirectCalls, answer_call
from cubicle.mcp_api.errors import McpRefused, send_refusal, with_server_errors
from cubicle.mcp_api.jsonrpc import BadJsonRpc, JsonRpcMessage
from cubicle.mcp_api.large_decoder import decode_large
from cubicle.mcp_api.request_context import CALLER, SESSION
from cubicle.mcp_api.request_ids import RequestIds
from cubicle.mcp_api.resumption import HEADER as LAST_EVENT_ID
from cubicle.mcp_api.resumption import ResumableAnswers
from cubicle.mcp_api.running_calls import RunningCalls
from cubicle.mcp_api.sessions import HEADER as SESSION_HEADER
from cubicle.mcp_api.sessions import McpSessions, is_wellformed
from cubicle.mcp_api.set_aside import SET_ASIDE, SetAside, describes_itself_briefly
from cubicle.mcp_api.transport import CONNECTION, ClientConnection, Unforeseen, answer, refuse_call
from cubicle.mcp_api.ui_cards import declares, extensions_of
from cubicle.sandbox.sharing import hear_of_left

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Forward = Callable[[Scope, Receive, Send, Chat], Awaitable[bool]]
"""Answers the request if another process owns the chat; whether it did."""

MAX_BODY = 64 * 1024**2
_LONG_META = Problem(413, "The fields of `_meta`, the name of the tool or the id are too long. Send shorter ones.")
_MAX_OTHER_BODY = 1024**2
"""Of everything but tools/call."""
_VERSION = "MCP-Protocol-Version"
_ENDED = Problem(404, "This MCP session was ended. Start a new one with initialize.")


class Disconnected(Exception):
    """The client left before its request was whole."""


@dataclass(frozen=True)
class RequestCheck:
    """One ASGI application for every MCP path."""

    server: Server[Any]
    modern: App
    """The SDK's own handling of the era without handshake."""
    authentication: Authentication
    mode: Isolation
    sessions: McpSessions
    in_flight: InFlight
    resumable: ResumableAnswers
    request_ids: RequestIds
    watch: AccessWatch
    calls: RunningCalls
    direct: DirectCalls | None = None
    """Answers most tool calls of the handshake era; None where all of them are the SDK's."""
    forward: Forward | None = None
    """Has a request answered by whoever owns its chat; None where this process owns all."""
    large: FairSlots = field(default_factory=lambda: FairSlots(total=16, of_tenant=4, of_chat=16))
    """For requests with a body over 1 MB, which lies in memory more than once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope["headers"])
        started = refused = False
        left = hear_of_left()

        async def tell(message: MutableMapping[str, Any]) -> None:
            nonlocal started, refused
            if left and not started:
                started = refused = True
                await send_refusal(send, Problem(503, left[0], {"Retry-After": "1"}))
            started = True
            if not refused:
                await send(message)

        try:
            caller = await self._caller(scope, headers)
            note_caller(caller.chat, caller.email)
            assert caller.identity is not None
            await self.watch.run(lambda: self._held(scope, headers, caller, receive, tell), _watched(caller.identity))
        except AccessOver:
            if not started:
                await send_refusal(tell, problem.UNAUTHORIZED)
        except Busy as error:
            await send_refusal(tell, Problem(429, str(error), {"Retry-After": "1"}))
        except McpRefused as refusal:
            await send_refusal(tell, refusal.problem, refusal.code)
        except Disconnected:
            return
        except Unforeseen:  # it is in the log
            await send_refusal(tell, problem.SERVER_ERROR)
        except Exception:
            log.exception("an MCP request failed")
            if not started:
                await send_refusal(tell, problem.SERVER_ERROR)

    async def _held(self, scope: Scope, headers: Headers, caller: Caller, receive: Receive, send: Send) -> None:
        if _is_settled(scope, headers) and await self._passed_on(scope, receive, send, caller):
            return
        async with AsyncExitStack() as stack:
            await self._answer(scope, headers, caller, receive, send, stack)

    async def _caller(self, scope: Scope, headers: Headers) -> Caller:
        shown = Shown(headers, (scope.get("client") or ("",))[0], path=_path(scope))
        try:
            identity = await self.authentication.admit(shown, Who.BEARER)
        except NotLetIn as refused:
            raise McpRefused(refused.problem) from None
        # A POST whose body will be read may name its conversation in it, a GET in the id of the event.
        read = scope["method"] == "POST" and accepts_mcp(headers.all("Accept")) and is_json(headers.get("Content-Type"))
        read = read or (scope["method"] == "GET" and headers.get(LAST_EVENT_ID) is not None)
        mode = Isolation.LENIENT if self.mode is Isolation.STRICT and read else self.mode
        try:
            note(**identity.log_fields)
            return identify(headers, mode, identity)
        except NotYourChat as error:
            raise McpRefused(Problem(403, str(error))) from None
        except (BadChatId, ChatIdMissing) as error:
            raise McpRefused(problem.bad_request(str(error))) from None

    async def _answer(
        self, scope: Scope, headers: Headers, caller: Caller, receive: Receive, send: Send, stack: AsyncExitStack
    ) -> None:
        match scope["method"]:
            case "POST":
                await self._post(scope, headers, caller, receive, send, stack)
            case "DELETE":
                session = self._session(headers, caller)
                if session is None:
                    raise McpRefused(
                        problem.bad_request(f"Name the MCP session to end in the header {SESSION_HEADER}.")
                    )
                self.sessions.end(caller.chat.tenant, session)
                self.resumable.end_session(caller.chat.tenant, session)
                await send({"type": "http.response.start", "status": 204, "headers": []})
                await send({"type": "http.response.body", "body": b""})
            case "GET" if (event := headers.get(LAST_EVENT_ID)) is not None and _is_handshake(headers):
                session = self._session(headers, caller)
                if session is None:
                    raise McpRefused(problem.bad_request(f"Name the MCP session in the header {SESSION_HEADER}."))
                caller = self._resuming(caller, headers, event)
                if await self._passed_on(scope, receive, send, caller):
                    return
                await self.resumable.resume(event, caller, session, scope, receive, _with_session(send, session))
            case _:
                raise McpRefused(problem.not_allowed("POST", "DELETE"))

    async def _passed_on(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> bool:
        """Whether another process owns the chat, and has answered."""
        note(chat=caller.chat.id)
        return self.forward is not None and await self.forward(scope, receive, send, caller.chat)

    def _resuming(self, caller: Caller, headers: Headers, event: str) -> Caller:
        """Whoever comes back sends no `_meta`: the event names the conversation, if that named the chat."""
        try:
            return in_named(caller, headers, self.mode, event_ids.conversation(event))
        except (BadChatId, ChatIdMissing) as error:
            raise McpRefused(problem.bad_request(str(error))) from None

    async def _post(
        self, scope: Scope, headers: Headers, caller: Caller, receive: Receive, send: Send, stack: AsyncExitStack
    ) -> None:
        if not accepts_mcp(headers.all("Accept")):
            raise McpRefused(problem.NOT_ACCEPTED)
        if not is_json(headers.get("Content-Type")):
            raise McpRefused(problem.NOT_JSON)
        handshake = _is_handshake(headers)
        session = self._session(headers, caller) if handshake else None
        try:
            body = await _read(headers, receive, lambda: stack.enter_async_context(self.large.hold(caller.chat)))
            message = jsonrpc.parse(await _decoded(body))
        except BadJsonRpc as error:
            raise McpRefused(problem.bad_request(str(error)), jsonrpc.INVALID_REQUEST) from None
        except TooComplex as error:
            raise McpRefused(problem.bad_request(str(error)), jsonrpc.PARSE_ERROR) from None
        except ValueError:
            raise McpRefused(problem.bad_request("The body is not JSON."), jsonrpc.PARSE_ERROR) from None
        try:
            caller = in_conversation(caller, headers, self.mode, message.params.get("_meta"))
        except ChatIdMissing as error:
            raise McpRefused(problem.bad_request(str(error))) from None
        if await self._passed_on(scope, _replay(bytes(body), receive), send, caller):
            return
        if len(body) > _MAX_OTHER_BODY and message.method != "tools/call":
            raise McpRefused(problem.too_large(_MAX_OTHER_BODY))
        if len(body) > _MAX_OTHER_BODY and not describes_itself_briefly(message):
            raise McpRefused(_LONG_META)
        if self.calls.draining and message.method == "tools/call" and message.id is not None:
            if session is None or not self.in_flight.has(session, caller.chat):
                raise McpRefused(problem.DRAINING)
            # A refusal by its status would end the session of many clients, and with it the calls that still run.
            await refuse_call(message, _with_session(send, session))
            return
        if handshake:
            is_large = len(body) > _MAX_OTHER_BODY
            del body  # it would lie in memory twice for as long as the call lasts
            await self._answer_handshake(scope, headers, caller, message, session, receive, send, is_large=is_large)
        else:
            aside = SetAside()
            read = aside.shortened(message) if len(body) > _MAX_OTHER_BODY else bytes(body)
            del message, body  # the SDK decodes it once more, and keeps it
            scope = {**scope, CALLER: caller, SET_ASIDE: aside, "headers": _normal(scope["headers"])}
            await self.modern(scope, _replay(read, receive), with_server_errors(aside.filling(send)))

    async def _answer_handshake(
        self,
        scope: Scope,
        headers: Headers,
        caller: Caller,
        message: JsonRpcMessage,
        session: str | None,
        receive: Receive,
        send: Send,
        *,
        is_large: bool,
    ) -> None:
        version, session = headers.get(_VERSION), self._handshake(message, caller, session)
        send = _with_session(send, session)
        # A large one lies in memory for as long as its request lasts, and not longer.
        resumed = session if not is_large and self.resumable.takes(message, caller) else None
        connection: ClientConnection | None = scope.get(CONNECTION)
        call = self.direct.take(message, caller, session, headers) if self.direct is not None else None
        if call is not None and connection is not None:
            if resumed is not None:
                await self.resumable.answer_call(call, message, version, resumed, connection, scope, receive, send)
            else:
                await answer_call(call, connection, scope, receive, send)
            return
        scope = {**scope, CALLER: caller, SESSION: session, "headers": _normal(scope["headers"])}
        if resumed is not None:
            await self.resumable.answer(self.server, message, version, caller, resumed, scope, receive, send)
        else:
            await answer(self.server, message, version, scope, receive, send)

    def _handshake(self, message: JsonRpcMessage, caller: Caller, session: str | None) -> str | None:
        """The session of this message; a cancellation takes effect here."""
        if message.method == "initialize":
            session = self.sessions.mint(cards=declares(extensions_of(message.params.get("capabilities"))))
        if session is not None and message.id is not None and message.method is not None:
            self.request_ids.note(caller.chat.tenant, session, message.id, message.method)
        request = message.params.get("requestId")
        if message.method == "notifications/cancelled" and jsonrpc.is_request_id(request):
            self.in_flight.cancel(RequestKey(session, caller.chat, str(request)))
        return session

    def _session(self, headers: Headers, caller: Caller) -> str | None:
        session = headers.get(SESSION_HEADER)
        if session is None:
            return None
        if not is_wellformed(session):
            raise McpRefused(problem.bad_request(f"The header {SESSION_HEADER} does not hold a session id."))
        if self.sessions.is_ended(caller.chat.tenant, session):
            raise McpRefused(_ENDED)
        return session


def _watched(identity: Identity) -> Identity:
    """What ends a request: a key that ends, or is revoked. The end of an OAuth token does not: a command may run for
    longer than the minutes that a token has. Streams that only listen end with it by themselves."""
    return replace(identity, expires=None) if identity.person else identity


def _is_settled(scope: Scope, headers: Headers) -> bool:
    """Whether nothing but the headers says which chat it is."""
    return chat_id(headers) is not None or scope["method"] not in ("POST", "GET")


def _is_handshake(headers: Headers) -> bool:
    version = headers.get(_VERSION)
    return version is None or version in HANDSHAKE_PROTOCOL_VERSIONS


def _path(scope: Scope) -> str:
    """Without the prefix of a proxy."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path") or "")


async def _decoded(body: bytearray) -> Any:
    return from_json(body, cache_strings="keys") if len(body) <= _MAX_OTHER_BODY else await decode_large(body)


async def _read(headers: Headers, receive: Receive, make_room: Callable[[], Awaitable[None]]) -> bytearray:
    """The body, never more of it than the limit, nor of more structure; `make_room` before it is large.

    Raises TooComplex, and Busy.
    """
    declared = headers.get("Content-Length") or ""
    if declared.isdigit() and int(declared) > MAX_BODY:
        raise McpRefused(problem.too_large(MAX_BODY))
    body = bytearray()
    structure = JsonStructure()
    while True:
        try:
            async with asyncio.timeout(TIMEOUT):
                message = await receive()
        except TimeoutError:
            raise McpRefused(Problem(408, "The rest of the request did not come.")) from None
        if message["type"] != "http.request":
            raise Disconnected
        part = message.get("body", b"")
        if len(body) <= _MAX_OTHER_BODY < len(body) + len(part):
            await make_room()
        if len(body) + len(part) > MAX_BODY:
            raise McpRefused(problem.too_large(MAX_BODY))
        structure.feed(part)
        body += part
        if not message.get("more_body", False):
            return body


def _normal(raw: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers with trimmed values: the server leaves trailing blanks on them."""
    return [(name, value.strip()) for name, value in raw]


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once more in one piece, then whatever comes (a disconnect)."""
    pending: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> MutableMapping[str, Any]:
        return pending.pop() if pending else await receive()

    return replayed


def _with_session(send: Send, session: str | None) -> Send:
    if session is None:
        return send

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (SESSION_HEADER.lower().encode(), session.encode())]}
        await send(message)

    return sending
