"""MCP Tasks on the wire: the form of revision 2025-11-25, and the extension of 2026-07-28.

In the first, a client asks for a task with `params.task`, lists its tasks, and fetches a result with `tasks/result`. In
the second, a client declares the extension, the service decides which call becomes a task, and `tasks/get` has the
result; `tasks/update` answers questions of a tool. News of a task's status come in the first form on the stream of
`tasks/result`, in the second on that of `subscriptions/listen`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import HEADER_MISMATCH, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY

from cubicle.core.call_identity import CallIdentity
from cubicle.core.caller import Caller, Headers
from cubicle.core.chat import Chat
from cubicle.mcp_api import jsonrpc
from cubicle.mcp_api.mcp_tasks import McpTasks, NoSuchTask, TaskState
from cubicle.mcp_api.request_context import (
    CallRequest,
    Context,
    caller_of,
    is_modern,
    progress_stream,
    result_of,
    scope_of,
)
from cubicle.mcp_api.running_calls import CallCancelled, RunningCall
from cubicle.mcp_api.task_input import BadReply, input_requests, read_reply
from cubicle.tools.base import Answer, Tool, task_support
from cubicle.tools.questions import asks_first

EXTENSION = "io.modelcontextprotocol/tasks"
_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_RELATED = "io.modelcontextprotocol/related-task"
_SINCE = "2025-11-25"
_POLL_MILLISECONDS = 1000
_MAX_TTL = 10**12
MAX_WATCHED = 100
"""Tasks of which one stream tells."""
AT_ONCE_SECONDS = 0.5
"""A call of the newer era that ends within this is answered at once, and not by a task."""

Params = TypeVar("Params")
Method = Callable[[Context, Params], Awaitable[dict[str, Any]]]


class UpdateTaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


@dataclass(frozen=True)
class TaskMethods:
    """`tasks/*`, and the calls that become tasks."""

    tasks: McpTasks

    def register(self, server: Server[Any]) -> None:
        server.add_request_handler("tasks/get", types.GetTaskRequestParams, self._found(self._get))
        server.add_request_handler("tasks/result", types.GetTaskPayloadRequestParams, self._found(self._result))
        server.add_request_handler("tasks/cancel", types.CancelTaskRequestParams, self._found(self._cancel))
        server.add_request_handler("tasks/update", UpdateTaskParams, self._found(self._update))
        server.add_request_handler("tasks/list", types.PaginatedRequestParams, self._found(self._list))

    def declare(self, capabilities: dict[str, Any], *, modern: bool, version: str) -> None:
        if not self.tasks.are_offered:
            return
        if modern:
            capabilities.setdefault("extensions", {})[EXTENSION] = {}
        elif version >= _SINCE:
            capabilities["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}

    def execution(self, tool: Tool) -> types.ToolExecution | None:
        support = task_support(tool) if self.tasks.are_offered else "forbidden"
        return types.ToolExecution(task_support=support) if support != "forbidden" else None

    def asked_for(self, context: Context) -> Mapping[str, Any] | None:
        """The field `task` of a call of revision 2025-11-25, which the SDK knows nothing of."""
        if context.method != "tools/call" or is_modern(context) or not self.tasks.are_offered:
            return None
        task = (context.params or {}).get("task")
        return task if isinstance(task, Mapping) and context.protocol_version >= _SINCE else None

    async def create(
        self,
        caller: Caller,
        tool: Tool,
        arguments: Mapping[str, Any],
        identity: CallIdentity | None,
        ttl: Any,
        *,
        call_id: str = "",
    ) -> dict[str, Any]:
        """Answer a call that asked for a task."""
        if task_support(tool) == "forbidden":
            raise MCPError(METHOD_NOT_FOUND, f"{tool.name} does not run as a task. Call it without `task`.")
        start = self.tasks.started(caller, tool, arguments, identity, _seconds(ttl), call_id=call_id)
        with _task_found():
            async with start as (id, _):
                return {"task": _handshake_fields(await self.tasks.state(caller.chat, id))}

    async def left_behind(self, chat: Chat, id: str, identity: str) -> RunningCall | Answer | Mapping[str, Any] | None:
        """For a client that resumes: a call by its id, or the result of one that asked for a task."""
        found = await self.tasks.left_behind(chat, id, identity)
        return {"task": _handshake_fields(found)} if isinstance(found, TaskState) else found

    def becomes_task(self, context: Context, tool: Tool) -> bool:
        """Whether a call of the newer era runs as a task. Raises MCPError for one that must and cannot."""
        if not is_modern(context) or not self.tasks.are_offered:
            return False
        support, declared = task_support(tool), _declares(context)
        if support == "required" and not declared:
            raise _missing()
        return declared and support != "forbidden"

    async def run(
        self,
        context: Context,
        caller: Caller,
        tool: Tool,
        arguments: Mapping[str, Any],
        identity: CallIdentity | None,
    ) -> Answer | dict[str, Any]:
        """The answer of a short call of the newer era, or the task that a longer one has become."""
        may_ask = "elicitation" in _capabilities(context)
        with _task_found():
            async with self.tasks.started(caller, tool, arguments, identity, None, may_ask=may_ask) as (id, running):
                with suppress(TimeoutError):
                    async with asyncio.timeout(AT_ONCE_SECONDS):
                        await running.wait()
                try:
                    state = await self.tasks.state(caller.chat, id)
                except NoSuchTask:  # the journal could not keep it: it is answered as calls are that are no tasks
                    if task_support(tool) == "required":
                        raise
                    await running.wait()
                    return _answer_of(running)
        if state.answer is not None and task_support(tool) != "required":
            return state.answer
        return {"resultType": "task", **_fields(state)}

    def _found(self, method: Method[Params]) -> Method[Params]:
        """Refuse what the caller's revision does not have, and ids that are not his."""

        async def answered(context: Context, params: Params) -> dict[str, Any]:
            removed = ("tasks/result", "tasks/list") if is_modern(context) else ("tasks/update",)
            is_old = not is_modern(context) and context.protocol_version < _SINCE
            if context.method in removed or is_old or not self.tasks.are_offered:
                raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
            if is_modern(context):
                _check_modern(context)
            with _task_found():
                return await method(context, params)

        return answered

    async def find(self, context: Context, chat: Chat, asked: object) -> dict[str, RunningCall | None]:
        """The tasks among these ids of which a client of the extension can be told, with the call of each that runs.
        Raises MCPError."""
        if not isinstance(asked, list) or not asked:
            return {}
        if not _declares(context):
            raise _missing()
        if len(asked) > MAX_WATCHED:
            raise MCPError(jsonrpc.INVALID_PARAMS, f"At most {MAX_WATCHED} tasks can be listened to in one stream.")
        found: dict[str, RunningCall | None] = {}
        for id in asked if self.tasks.are_offered else ():
            with suppress(NoSuchTask):
                found[str(id)] = await self.tasks.running(chat, str(id))
        return found

    async def describe(self, chat: Chat, id: str) -> dict[str, Any] | None:
        """A task of the extension as it is just now; None for one that has expired."""
        try:
            return _detailed(await self.tasks.state(chat, id))
        except NoSuchTask:
            return None

    async def _get(self, context: Context, params: types.GetTaskRequestParams) -> dict[str, Any]:
        state = await self.tasks.state(caller_of(context).chat, params.task_id)
        return _detailed(state) if is_modern(context) else _handshake_fields(state)

    async def _result(self, context: Context, params: types.GetTaskPayloadRequestParams) -> dict[str, Any]:
        """What the call answered, when it has; its output comes as that of a call does."""
        chat = caller_of(context).chat
        running = await self.tasks.running(chat, params.task_id)
        if running is not None:
            following = progress_stream(CallRequest.of(context))
            with running.followed(following.report):
                await following.until(running)
        state = await self.tasks.state(chat, params.task_id)
        if running is not None:
            await _notify_status(context, state)
        if state.status in ("working", "input_required"):
            raise MCPError(jsonrpc.INTERRUPTED, "The service is being restarted. Ask for the result again in a minute.")
        if state.answer is None:
            code = jsonrpc.REQUEST_CANCELLED if state.status == "cancelled" else jsonrpc.TASK_FAILED
            raise MCPError(code, state.message)
        return {**result_of(state.answer), "_meta": {_RELATED: {"taskId": state.id}}}

    async def _cancel(self, context: Context, params: types.CancelTaskRequestParams) -> dict[str, Any]:
        chat = caller_of(context).chat
        was_running = await self.tasks.cancel(chat, params.task_id)
        if is_modern(context):
            return {}
        state = await self.tasks.state(chat, params.task_id)
        if not was_running:
            raise MCPError(jsonrpc.INVALID_PARAMS, f"The task has ended already: it is {state.status}.")
        return _handshake_fields(state)

    async def _update(self, context: Context, params: UpdateTaskParams) -> dict[str, Any]:
        chat = caller_of(context).chat
        await self.tasks.state(chat, params.task_id)
        try:
            await self.tasks.answer(chat, params.task_id, params.input_responses or {})
        except BadReply as error:
            raise MCPError(jsonrpc.INVALID_PARAMS, str(error)) from None
        return {}

    async def _list(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        cursor = params.cursor
        if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 16):
            raise MCPError(jsonrpc.INVALID_PARAMS, "Unknown cursor: take nextCursor as it came.")
        states, following = await self.tasks.list(caller_of(context).chat, int(cursor) if cursor else None)
        more = {} if following is None else {"nextCursor": str(following)}
        return {"tasks": [_handshake_fields(state) for state in states], **more}


def _seconds(ttl: Any) -> float | None:
    """Of a number of milliseconds, however large; None for what is none, NaN as well."""
    if not isinstance(ttl, int | float) or isinstance(ttl, bool) or ttl != ttl:
        return None
    return min(max(ttl, 1_000), _MAX_TTL) / 1000


def _answer_of(running: RunningCall) -> Answer:
    """Of a call that has ended. Raises MCPError for one that was cancelled."""
    try:
        return running.answer()
    except CallCancelled:
        raise MCPError(jsonrpc.REQUEST_CANCELLED, "Request cancelled") from None


@contextmanager
def _task_found() -> Iterator[None]:
    """An unknown task is an error of the caller's."""
    try:
        yield
    except NoSuchTask as error:
        raise MCPError(jsonrpc.INVALID_PARAMS, str(error)) from None


async def _notify_status(context: Context, state: TaskState) -> None:
    """Tell a client of 2025-11-25 that waits for the result."""
    params = types.TaskStatusNotificationParams.model_validate(_handshake_fields(state))
    told = cast(Any, types.TaskStatusNotification(params=params))  # the SDK does not send it by itself
    await context.session.send_notification(told, context.request_id)


def with_answers(
    context: Context, tool: Tool, arguments: dict[str, Any], replies: object
) -> dict[str, Any] | types.InputRequiredResult:
    """The arguments of a call with what its tool wants to know of the user, or the questions. Raises MCPError."""
    questions = asks_first(tool)
    if not questions:
        return arguments
    if not is_modern(context) or "elicitation" not in _capabilities(context):
        raise _missing({"elicitation": {}}, "capability elicitation")
    given = replies if isinstance(replies, Mapping) else {}
    left = {key: question for key, question in questions.items() if key not in given}
    if left:
        return types.InputRequiredResult.model_validate({"inputRequests": input_requests(left)})
    try:
        answers = {key: read_reply(given[key]) for key in questions}
    except BadReply as error:
        raise MCPError(jsonrpc.INVALID_PARAMS, str(error)) from None
    own = {name: value for name, value in arguments.items() if name not in questions}
    return own | {key: dict(reply.content) for key, reply in answers.items() if reply.action == "accept"}


def _capabilities(context: Context) -> Mapping[str, Any]:
    """What the client of this request of the newer era declares."""
    meta = (context.params or {}).get("_meta")
    capabilities = meta.get(_CAPABILITIES) if isinstance(meta, Mapping) else None
    return capabilities if isinstance(capabilities, Mapping) else {}


def _declares(context: Context) -> bool:
    """Whether the client of this request has declared the extension."""
    extensions = _capabilities(context).get("extensions")
    return isinstance(extensions, Mapping) and EXTENSION in extensions


def _missing(needed: Mapping[str, Any] | None = None, named: str = f"extension {EXTENSION}") -> MCPError:
    needed = {"requiredCapabilities": needed or {"extensions": {EXTENSION: {}}}}
    return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"The client must declare the {named} for this.", needed)


def _check_modern(context: Context) -> None:
    if not _declares(context):
        raise _missing()
    named = Headers(scope_of(context).get("headers", ())).get("Mcp-Name")
    if named is not None and named != (context.params or {}).get("taskId"):
        raise MCPError(HEADER_MISMATCH, "The header Mcp-Name does not have the taskId of the body.")


def _handshake_fields(state: TaskState) -> dict[str, Any]:
    """A task of 2025-11-25, where one whose tool reports an error has failed."""
    fields = {
        "taskId": state.id,
        "status": "failed" if state.reports_error else state.status,
        "createdAt": _iso(state.created),
        "lastUpdatedAt": _iso(state.updated),
        "ttl": state.ttl * 1000,
        "pollInterval": _POLL_MILLISECONDS,
    }
    return fields | ({"statusMessage": state.message} if state.message else {})


def _fields(state: TaskState) -> dict[str, Any]:
    """A task of the extension."""
    fields = {
        "taskId": state.id,
        "status": state.status,
        "createdAt": _iso(state.created),
        "lastUpdatedAt": _iso(state.updated),
        "ttlMs": state.ttl * 1000,
        "pollIntervalMs": _POLL_MILLISECONDS,
    }
    return fields | ({"statusMessage": state.message} if state.message else {})


def _detailed(state: TaskState) -> dict[str, Any]:
    """The same with how it ended."""
    fields = _fields(state)
    if state.answer is not None:
        fields["result"] = {**result_of(state.answer), "resultType": "complete"}
    elif state.questions:
        fields["inputRequests"] = input_requests(state.questions)
    elif state.status == "failed":
        fields["error"] = {"code": jsonrpc.TASK_FAILED, "message": state.message}
    return fields


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
