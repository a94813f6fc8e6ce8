"""The protocol side, by the official SDK. No type of the SDK leaves this folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import mcp_types as types
from anyio import to_thread
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from cubicle.audit.audit import AuditUnavailable
from cubicle.chat.clients import Clients
from cubicle.core import problem
from cubicle.core.call_identity import BadIdentity
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.core.paths import readable
from cubicle.core.resource_uris import NoSuchResource, ResourceTooLarge, UploadUri
from cubicle.fairness.fair_queue import FairQueue, LoopShare, metered
from cubicle.fairness.fair_slots import Busy, FairSlots
from cubicle.files.uploads import Content, Upload, Uploads
from cubicle.machine.errors import SandboxError
from cubicle.mcp_api import jsonrpc
from cubicle.mcp_api.cancellation import InFlight, RequestKey
from cubicle.mcp_api.followed_call import FollowedCall
from cubicle.mcp_api.pagination import page
from cubicle.mcp_api.raw_json import RawJson
from cubicle.mcp_api.repeated_calls import OtherArguments, RepeatedCalls
from cubicle.mcp_api.request_context import (
    SESSION,
    CallRequest,
    Context,
    caller_of,
    client_name,
    content_of,
    is_modern,
    scope_of,
)
from cubicle.mcp_api.sessions import has_cards
from cubicle.mcp_api.set_aside import SET_ASIDE, SetAside
from cubicle.mcp_api.subscriptions import Subscriptions
from cubicle.mcp_api.task_methods import TaskMethods, with_answers
from cubicle.mcp_api.ui_cards import UiCards, shows_cards
from cubicle.sandbox.fleet import Asleep
from cubicle.tools.base import Answer, Tool
from cubicle.tools.registry import Registry, UnknownTool

log = logging.getLogger(__name__)

NAME = "cubicle"
_prepared: ContextVar[dict[str, Any]] = ContextVar("cubicle_prepared_result")
"""Large fields of a result, as they are sent: the SDK would look three times at each of ten thousand entries."""

Params = TypeVar("Params")
Result = TypeVar("Result")
Instructions = Callable[[Caller], Awaitable[str]]


@dataclass(frozen=True)
class McpHandlers:
    """Answers the methods of MCP for the caller that the gate has identified."""

    registry: Registry
    uploads: Uploads
    instructions: Instructions
    in_flight: InFlight
    listening: Subscriptions
    queue: FairQueue
    calls: RepeatedCalls
    task_methods: TaskMethods
    clients: Clients = field(default_factory=Clients, kw_only=True)
    cards: UiCards | None = field(default=None, kw_only=True)
    lists: FairSlots = field(default_factory=lambda: FairSlots(total=4, of_tenant=2, of_chat=64), kw_only=True)

    def server(self, version: str) -> Server[Any]:
        server: Server[Any] = Server(
            NAME,
            version=version,
            title="Cubicle",
            description="A computer of its own for every chat.",
            get_tool_input_schema=self._input_schema,
            on_list_tools=_own(self._list_tools),
            on_call_tool=_own(cast(Any, self._call_tool)),  # the SDK knows no answer that is a task
            on_list_resources=_own(self._list_resources),
            on_list_resource_templates=self._list_templates,
            on_read_resource=_own(self._read_resource),
            on_subscriptions_listen=_own(self._listen),
            on_list_prompts=_list_prompts,
            on_get_prompt=_get_prompt,
            on_completion=_complete,
        )
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _set_level)
        self.task_methods.register(server)
        server.middleware[:] = [self._around]
        return server

    async def _around(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Around every method. The newer era is answered in a task of its own, which shares the loop from here on."""
        self.clients.note(caller_of(ctx).chat, client_name(ctx))
        if not is_modern(ctx):
            return await self._answer(ctx, call_next)
        chat = caller_of(ctx).chat
        return await metered(self._answer(ctx, call_next), self.queue, LoopShare(chat.tenant, chat.id))

    async def _answer(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """No exception text leaves, and the instructions are those of the caller's chat."""
        try:
            prepared: dict[str, Any] = {}
            _prepared.set(prepared)
            result = await self._cancellable(ctx, call_next)
            if prepared and isinstance(result, dict):
                aside = _set_aside(ctx)
                result.update(aside.marked(prepared) if aside is not None else prepared)
            if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
                result["instructions"] = await self.instructions(caller_of(ctx))
                _declare(result["capabilities"])
                version = str(result.get("protocolVersion", ""))
                self.task_methods.declare(result["capabilities"], modern=is_modern(ctx), version=version)
                if (cards := self._cards_for(ctx)) is not None:
                    cards.declare(result["capabilities"])
            return result
        except (MCPError, ValidationError):
            raise
        except Exception as error:  # noqa: BLE001 — protocol_error tells them apart, and logs
            raise protocol_error(error, ctx.method) from None

    async def _cancellable(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """A tool's call makes itself known, as it may outlive its request. The others share ids with it."""
        if (task := self.task_methods.asked_for(ctx)) is not None:
            return await self._create_task(ctx, task)
        if ctx.method == "tools/call" or ctx.request_id is None:
            return await call_next(ctx)
        with self.in_flight.cancellable(_key(ctx, caller_of(ctx))):
            return await call_next(ctx)
        raise MCPError(jsonrpc.REQUEST_CANCELLED, "Request cancelled")

    def _input_schema(self, name: str) -> Any:
        try:
            return self.registry.find(name).schema
        except UnknownTool:
            return None

    async def _list_tools(self, context: Context, _params: Any) -> types.ListToolsResult:
        cards = self._cards_for(context)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=dict(tool.schema),
                    execution=self.task_methods.execution(tool),
                    meta=cards.of_tool(tool.name) if cards is not None else None,
                )
                for tool in self.registry.tools
            ]
        )

    async def _read_card(self, cards: UiCards, uri: str, caller: Caller) -> dict[str, Any]:
        """A page of cards, or what one shows: that holds the key of a link, which the audit log is told of."""
        chat, audit = cards.chat_of(uri, caller), self.registry.audit
        if chat is not None:
            audit.require()
        content = await cards.read(uri, chat)
        if chat is not None:
            audit.record("link", {"what": "card", "outcome": "done"}, chat=chat, identity=caller.identity)
        return content

    def _cards_for(self, context: Context) -> UiCards | None:
        """The cards, if the client of this request shows them; all others get what they always got."""
        return self.cards if self.cards is not None and shows_cards(context) else None

    def cards_in(self, session: str | None) -> UiCards | None:
        """The same of a request in a session of the handshake era, but for the one that begins it."""
        return self.cards if self.cards is not None and has_cards(session or "") else None

    def _asked_for(self, context: Context, params: types.CallToolRequestParams) -> tuple[Tool, Caller, dict[str, Any]]:
        try:
            tool = self.registry.find(params.name)
        except UnknownTool:
            names = ", ".join(tool.name for tool in self.registry.tools)
            raise MCPError(jsonrpc.INVALID_PARAMS, f"Unknown tool: {params.name[:100]} (there are {names})") from None
        arguments = params.arguments or {}
        if (aside := _set_aside(context)) is not None:
            arguments = aside.restored(arguments)
        return tool, caller_of(context), arguments

    async def _create_task(self, context: Context, task: Mapping[str, Any]) -> HandlerResult:
        params = types.CallToolRequestParams.model_validate(dict(context.params or {}), by_name=False)
        tool, caller, given = self._asked_for(context, params)
        arguments = with_answers(context, tool, given, None)
        if isinstance(arguments, types.InputRequiredResult):
            return arguments
        request = CallRequest.of(context)
        return await self.task_methods.create(
            caller, tool, arguments, request.identity, task.get("ttl"), call_id=request.call_id
        )

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        tool, caller, given = self._asked_for(context, params)
        arguments = with_answers(context, tool, given, (context.params or {}).get("inputResponses"))
        if isinstance(arguments, types.InputRequiredResult):
            return arguments
        started, request = time.monotonic(), CallRequest.of(context)
        if self.task_methods.becomes_task(context, tool):
            answer = await self.task_methods.run(context, caller, tool, arguments, request.identity)
            if not isinstance(answer, Answer):
                return answer
        else:
            answer = await (await self.begin(request, tool, arguments)).answer()
        self.log_call(tool, answer, started)
        cards = self._cards_for(context)
        meta = cards.of_answer(caller.chat) if cards is not None else None
        content = [content_of(block) for block in answer.blocks]
        return types.CallToolResult(content=content, is_error=answer.error, meta=meta)

    async def begin(self, request: CallRequest, tool: Tool, arguments: dict[str, Any]) -> FollowedCall:
        """Run the call in a task of its own, or join the one that it repeats, and follow it."""
        running = await self.calls.start(request.caller, tool, arguments, request.identity, id=request.call_id)
        return FollowedCall(running, request, self.in_flight)

    def log_call(self, tool: Tool, answer: Answer, started: float) -> None:
        seconds = round(time.monotonic() - started, 3)
        log.info("tool call", extra={"tool": tool.name, "error": answer.error, "seconds": seconds})

    async def _list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        chat, cards = caller_of(context).chat, self._cards_for(context)
        await self.uploads.look(chat)  # before: whoever waits for a sandbox that hangs takes no place from others
        async with self.lists.hold(chat):
            found = await self.uploads.list(chat)
            files, cursor = await to_thread.run_sync(page, found, params.cursor if params is not None else None)
            first = cards.listed() if cards is not None and (params is None or not params.cursor) else []
            _prepared.get()["resources"] = await to_thread.run_sync(_resources, chat, files, first)
        return types.ListResourcesResult(next_cursor=cursor, resources=[])

    async def _list_templates(self, _context: Context, _params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[])

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        caller = caller_of(context)
        expires = caller.identity.expires if caller.identity is not None else None
        return await self.listening.serve(context, params, caller.chat, self.task_methods, expires)

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        caller = caller_of(context)
        try:
            if self.cards is not None and self.cards.has(str(params.uri)):
                _prepared.get()["contents"] = [await self._read_card(self.cards, str(params.uri), caller)]
                return types.ReadResourceResult(contents=[], ttl_ms=0, cache_scope="private")
            uri = UploadUri.parse(str(params.uri))
            if not caller.shared and uri.chat_id != caller.chat.id:
                raise NoSuchResource
            # Some clients send no X-Chat-Id with these calls: there the URI is what names the chat.
            chat, audit = uri.chat(caller.chat.tenant), self.registry.audit
            audit.require()
            await self.uploads.look(chat)
            async with self.lists.hold(caller.chat):
                file = await self.uploads.read(chat, uri.path)
                said = {"what": "resources/read", "outcome": "done", "size": len(file.data)}
                audit.record("download", said, chat=chat, identity=caller.identity)
                _prepared.get()["contents"] = [await to_thread.run_sync(_contents, str(params.uri), file)]
        except AuditUnavailable as error:
            raise MCPError(jsonrpc.INTERNAL_ERROR, str(error)) from None
        except ResourceTooLarge as error:
            raise MCPError(jsonrpc.INVALID_PARAMS, str(error), {"uri": str(params.uri)[:1000]}) from None
        except NoSuchResource:
            code = jsonrpc.INVALID_PARAMS if is_modern(context) else jsonrpc.RESOURCE_NOT_FOUND
            raise MCPError(code, "Resource not found", {"uri": str(params.uri)[:1000]}) from None
        return types.ReadResourceResult(contents=[])


def _declare(capabilities: dict[str, Any]) -> None:
    """The SDK declares whatever has a handler, and takes it that a server with streams has news of everything."""
    capabilities["tools"] = {"listChanged": False}  # the five never change
    capabilities.pop("prompts", None)
    capabilities.pop("completions", None)


async def _list_prompts(_context: Context, _params: Any) -> types.ListPromptsResult:
    """None, and none are declared. Gateways ask every server all the same, and an error would look like a fault."""
    return types.ListPromptsResult(prompts=[])


async def _get_prompt(_context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    raise MCPError(jsonrpc.INVALID_PARAMS, f"Unknown prompt: {params.name[:100]}")


async def _complete(_context: Context, _params: types.CompleteRequestParams) -> types.CompleteResult:
    """No suggestions: there is neither a prompt nor a template whose argument could be completed."""
    return types.CompleteResult(completion=types.Completion(values=[], total=0, has_more=False))


async def _set_level(_context: Context, _params: types.SetLevelRequestParams) -> types.EmptyResult:
    """Accepted and forgotten: no state hangs on an MCP session."""
    return types.EmptyResult()


def _own(
    handler: Callable[[Context, Params], Awaitable[Result]],
) -> Callable[[Context, Params], Awaitable[Result]]:
    """What does not fit a type in here is a fault of the service; outside it is one of the caller's parameters."""

    async def handled(context: Context, params: Params) -> Result:
        try:
            return await handler(context, params)
        except ValidationError as error:
            raise RuntimeError("an answer does not fit the protocol") from error

    return handled


def protocol_error(error: Exception, method: str) -> MCPError:
    """What the client is told of an error that is not the protocol's own; no text of one that nobody foresaw."""
    match error:
        case BadIdentity() | OtherArguments():
            return MCPError(jsonrpc.INVALID_PARAMS, str(error))
        case Asleep():
            return MCPError(jsonrpc.ASLEEP, f"{error} Any tool call wakes it.", {"type": problem.ASLEEP})
        case Busy():
            return MCPError(jsonrpc.TOO_MANY_STREAMS, str(error))
        case SandboxError():  # one that is down is no fault of the protocol, and people want to know of it
            log.warning("a method found no sandbox: %s", error, extra={"method": method})
            return MCPError(jsonrpc.SANDBOX_UNAVAILABLE, f"{error} Try again; if it goes on, tell the user.")
        case _:
            log.error("a method failed", exc_info=error, extra={"method": method})
            return MCPError(jsonrpc.INTERNAL_ERROR, "The service failed; its log has the reason.")


def _key(context: Context, caller: Caller) -> RequestKey:
    # A client of the newer era cancels by hanging up: no notification can mean its request.
    session = "" if is_modern(context) else scope_of(context).get(SESSION)
    return RequestKey(session, caller.chat, str(context.request_id))


def _set_aside(context: Context) -> SetAside | None:
    return scope_of(context).get(SET_ASIDE)


def _resources(chat: Chat, files: Sequence[Upload], first: Sequence[dict[str, Any]] = ()) -> RawJson:
    return RawJson.list_of(
        [
            *first,
            *(
                {
                    "uri": str(UploadUri(chat.id, file.path)),
                    "name": file.name,
                    # Two folders may hold files of one name: people tell them apart by this.
                    "title": readable(file.path),
                    "mimeType": file.media_type,
                    "size": file.size,
                }
                for file in files
            ),
        ]
    )


def _contents(uri: str, file: Content) -> RawJson:
    content = {"text": file.text} if file.text is not None else {"blob": file.data}
    return RawJson.of({"uri": uri, "mimeType": file.media_type, **content})
