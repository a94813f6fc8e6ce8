"""Tool calls of the handshake era that do not pass through the SDK, which costs more than the rest of a short call.

Only what the SDK would take as it is comes here: a tool that there is, and parameters of the usual names and types. All
else, such as errors of the parameters and calls that become tasks, is answered by the SDK. Both ways are answered byte
by byte the same (tests/mcp_api/test_direct_calls.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from cubicle.core.caller import Caller, Headers
from cubicle.log import note
from cubicle.mcp_api.followed_call import FollowedCall
from cubicle.mcp_api.handlers import McpHandlers, protocol_error
from cubicle.mcp_api.jsonrpc import JsonRpcMessage
from cubicle.mcp_api.request_context import CallRequest, client_name_in, content_of
from cubicle.mcp_api.transport import (
    ClientConnection,
    EventSender,
    HttpAnswer,
    Receive,
    Send,
    client_watched,
    error_outcome,
)
from cubicle.tools.base import Answer, Block, TextContent, Tool
from cubicle.tools.questions import asks_first
from cubicle.tools.registry import UnknownTool

_PARAMS = frozenset(("name", "arguments", "_meta"))
_TOKEN, _OWN_TOKEN = "progressToken", "progress_token"
"""As the protocol spells it, and as the SDK hands it on."""


class DirectCalls:
    """Recognises the calls that need no SDK."""

    def __init__(self, handlers: McpHandlers) -> None:
        self._handlers = handlers

    def take(self, message: JsonRpcMessage, caller: Caller, session: str | None, headers: Headers) -> DirectCall | None:
        """The call that this message of the handshake era asks for; None for one that is the SDK's."""
        if message.method != "tools/call" or message.id is None:
            return None
        params = message.params
        name, arguments, meta = params.get("name"), params.get("arguments"), params.get("_meta")
        if (
            type(name) is not str
            or not (arguments is None or type(arguments) is dict)
            or not _PARAMS.issuperset(params)
        ):
            return None
        if meta is not None and not _is_plain(meta):
            return None
        try:
            tool = self._handlers.registry.find(name)
        except UnknownTool:
            return None
        if asks_first(tool):
            return None
        return DirectCall(self._handlers, tool, arguments or {}, message.id, meta or {}, caller, session, headers)


def _is_plain(meta: object) -> bool:
    """Whether the SDK takes it as it is."""
    if type(meta) is not dict or _OWN_TOKEN in meta:
        return False
    return _TOKEN not in meta or type(meta[_TOKEN]) in (str, int)


class DirectCall:
    """One call, from its parameters to its outcome: the result or the error, as the answer's field."""

    def __init__(
        self,
        handlers: McpHandlers,
        tool: Tool,
        arguments: dict[str, Any],
        id: int | str,
        meta: Mapping[str, Any],
        caller: Caller,
        session: str | None,
        headers: Headers,
    ) -> None:
        self.caller = caller
        self.id = id
        self._handlers = handlers
        self._tool = tool
        self._arguments = arguments
        self._meta = meta
        self._session = session
        self._headers = headers
        self._followed: FollowedCall | None = None
        self._error: dict[str, Any] | None = None
        self._answer: Answer | None = None
        self._started = time.monotonic()
        self._request_is_over = False

    async def begin(self, events: EventSender, call_id: str = "", on_done: Callable[[], None] | None = None) -> None:
        """Start the call, or join the one that it repeats. Where that fails, it is settled at once."""

        async def notify(notification: types.ServerNotification) -> None:
            data = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
            await events.notify(data["method"], data.get("params"))

        handlers, meta = self._handlers, self._meta
        handlers.clients.note(self.caller.chat, client_name_in(meta))
        request = CallRequest(
            self.caller, self.id, self._session, self._headers, meta, meta.get(_TOKEN), notify,
            comment=events.comment, call_id=call_id, on_done=on_done,
        )  # fmt: skip
        try:
            self._followed = await handlers.begin(request, self._tool, self._arguments)
        except Exception as error:  # noqa: BLE001 — protocol_error tells them apart, and logs
            self._error = _outcome_of_error(error)

    @property
    def is_settled(self) -> bool:
        return self._followed is None or self._followed.is_settled

    async def settles_soon(self, connection: ClientConnection) -> None:
        """Wait until the call is settled; not for long, nor for a client that is gone. Nothing is sent meanwhile."""
        if self._followed is not None:
            await self._followed.settles_soon(connection)

    async def outcome(self) -> dict[str, Any]:
        """Send the output until the call is settled. Waits for nothing but the client, where it is."""
        if self._followed is None:
            return self._error or {}
        try:
            return self._result(await self._followed.answer())
        except Exception as error:  # noqa: BLE001 — protocol_error tells them apart, and logs
            return _outcome_of_error(error)

    def note(self) -> None:
        """Have the log line of the request say which tool was called, and how it ended, if that is known."""
        self._request_is_over = True
        known = {} if self._answer is None else {"error": self._answer.error}
        note(tool=self._tool.name, **known)

    def leave(self) -> None:
        if self._followed is not None:
            self._followed.leave()

    def _result(self, answer: Answer) -> dict[str, Any]:
        handlers = self._handlers
        self._answer = answer
        if self._request_is_over:  # its line did not say how the call ended
            handlers.log_call(self._tool, answer, self._started)
        content = [_fields_of(block) for block in answer.blocks]
        cards = handlers.cards_in(self._session)
        meta = cards.of_answer(self.caller.chat) if cards is not None else None
        result = {"content": content, "isError": answer.error}
        return {"result": result if meta is None else {"_meta": meta, **result}}


def _fields_of(block: Block) -> dict[str, Any]:
    """As the SDK has it."""
    if isinstance(block, TextContent):
        return {"text": block.text, "type": "text"}
    fields = content_of(block).model_dump(mode="json", by_alias=True, exclude_none=True)
    return {name: fields[name] for name in sorted(fields)}


def _outcome_of_error(error: Exception) -> dict[str, Any]:
    return error_outcome(error if isinstance(error, MCPError) else protocol_error(error, "tools/call"))


async def answer_call(
    call: DirectCall, connection: ClientConnection, scope: MutableMapping[str, Any], receive: Receive, send: Send
) -> None:
    """Answer one POST whose answer nobody can resume. A client that goes away cancels its call. Raises Unforeseen."""
    events = HttpAnswer(call.id, send)
    await call.begin(events)
    outcome: dict[str, Any] | None = None
    try:
        await call.settles_soon(connection)
        if call.is_settled:
            outcome = await call.outcome()
        else:
            async with client_watched(scope, receive):
                outcome = await call.outcome()
    finally:
        call.leave()
        call.note()
    if outcome is not None:
        await events.finish(outcome)
