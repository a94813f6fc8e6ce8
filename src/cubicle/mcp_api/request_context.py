"""What the handlers know of the request that they answer: who asks, how he follows a tool, which era it is of."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cubicle.core.caller import Caller
from cubicle.mcp_api.progress import ProgressStream
from cubicle.mcp_api.transport import COMMENT
from cubicle.tools.base import Answer, Block, ImageContent

CALLER, SESSION = "cubicle.caller", "cubicle.mcp_session"
"""Where the gate leaves, in the ASGI scope, who calls and in which MCP session."""

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
    params, meta = context.params or {}, context.meta or {}
    info = params.get("clientInfo") if context.method == "initialize" else meta.get(_CLIENT_INFO)
    if not isinstance(info, Mapping):
        return ""
    names = (info.get("title"), info.get("name"))
    return next((name[:_MAX_NAME] for name in names if isinstance(name, str) and name.strip()), "")


def is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def progress_stream(context: Context) -> ProgressStream:
    """How this caller follows a tool: by progress when it gave a token, else by log messages in the handshake era.

    A sign of life is a progress notification where there is a token, and always a comment line on the stream (which
    the SDK sends by itself in the newer era).
    """
    token = (context.meta or {}).get("progress_token")
    scope = scope_of(context)

    async def progress(text: str, seconds: float) -> None:
        params = types.ProgressNotificationParams(progress_token=token or 0, progress=round(seconds, 3), message=text)
        await context.session.send_notification(types.ProgressNotification(params=params), context.request_id)

    async def message(text: str, _seconds: float) -> None:
        if not is_modern(context):
            params = types.LoggingMessageNotificationParams(level="info", logger="output", data=text)
            await context.session.send_notification(types.LoggingMessageNotification(params=params), context.request_id)

    async def beat(text: str, seconds: float) -> None:
        if COMMENT in scope:
            await scope[COMMENT]()
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
