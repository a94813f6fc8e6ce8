"""What the handlers know of the request that they answer: who asks, how he follows a tool, which era it is of."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cubicle.core.call_identity import CallIdentity, find_identity
from cubicle.core.caller import Caller, Headers
from cubicle.mcp_api.progress import ProgressStream
from cubicle.mcp_api.transport import COMMENT
from cubicle.tools.base import Answer, Block, ImageContent

CALLER, SESSION = "cubicle.caller", "cubicle.mcp_session"
"""Where the gate leaves, in the ASGI scope, who calls and in which MCP session."""
CALL_ID, CALL_DONE = "cubicle.call_id", "cubicle.call_done"
"""Where, in the ASGI scope, a tool's call finds the id that it is to have, and whom to tell that it is done."""

Context = ServerRequestContext[Any, Any]
_CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
_MAX_NAME = 200


def scope_of(context: Context) -> dict[str, Any]:
    scope: dict[str, Any] = context.request.scope if context.request is not None else {}
    return scope


def caller_of(context: Context) -> Caller:
    caller: Caller = scope_of(context)[CALLER]
    return caller


def client_name(context: Context) -> str:
    """As the client calls itself, where this request says it."""
    if context.method == "initialize":
        return _name_of((context.params or {}).get("clientInfo"))
    return client_name_in(context.meta or {})


def client_name_in(meta: Mapping[str, Any]) -> str:
    return _name_of(meta.get(_CLIENT_INFO))


def _name_of(info: object) -> str:
    if not isinstance(info, Mapping):
        return ""
    names = (info.get("title"), info.get("name"))
    return next((name[:_MAX_NAME] for name in names if isinstance(name, str) and name.strip()), "")


def is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


@dataclass(slots=True)
class CallRequest:
    """What a tool's call needs to know of the request that makes it."""

    caller: Caller
    id: int | str | None
    session: str | None
    headers: Headers
    meta: Mapping[str, Any]
    token: int | str | None
    """The progress token."""
    notify: Callable[[types.ServerNotification], Awaitable[None]]
    is_modern: bool = False
    comment: Callable[[], Awaitable[None]] | None = None
    """Sends a comment line on the stream."""
    call_id: str = ""
    """The id that the call is to have, if it is to have one."""
    on_done: Callable[[], None] | None = None

    @classmethod
    def of(cls, context: Context) -> CallRequest:
        scope, meta = scope_of(context), context.meta or {}
        return cls(
            scope[CALLER],
            context.request_id,
            scope.get(SESSION),
            Headers(scope.get("headers", ())),
            meta,
            meta.get("progress_token"),
            partial(context.session.send_notification, related_request_id=context.request_id),
            is_modern(context),
            scope.get(COMMENT),
            scope.get(CALL_ID, ""),
            scope.get(CALL_DONE),
        )

    @property
    def identity(self) -> CallIdentity | None:
        """Raises BadIdentity."""
        return find_identity(self.headers, self.meta, self.session, self.id)


def progress_stream(request: CallRequest) -> ProgressStream:
    """How this caller follows a tool: by progress when it gave a token, else by log messages in the handshake era.

    A sign of life is a progress notification where there is a token, and always a comment line on the stream (which
    the SDK sends by itself in the newer era).
    """
    token = request.token

    async def progress(text: str, seconds: float) -> None:
        params = types.ProgressNotificationParams(progress_token=token or 0, progress=round(seconds, 3), message=text)
        await request.notify(types.ProgressNotification(params=params))

    async def message(text: str, _seconds: float) -> None:
        if not request.is_modern:
            params = types.LoggingMessageNotificationParams(level="info", logger="output", data=text)
            await request.notify(types.LoggingMessageNotification(params=params))

    async def beat(text: str, seconds: float) -> None:
        if request.comment is not None:
            await request.comment()
        if token is not None:
            await progress(text, seconds)

    return ProgressStream(message if token is None else progress, beat, flush=token is not None)


def content_of(block: Block) -> types.TextContent | types.ImageContent:
    if isinstance(block, ImageContent):
        encoded = base64.b64encode(block.data).decode()
        if block.as_text:
            return types.TextContent(text=f"data:{block.media_type};base64,{encoded}")
        return types.ImageContent(data=encoded, mime_type=block.media_type)
    return types.TextContent(text=block.text)


def result_of(answer: Answer) -> dict[str, Any]:
    """The result of a tool call, as it is sent in every revision."""
    blocks = [content_of(block).model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.blocks]
    return {"content": blocks, "isError": answer.error}
