"""Tools that the scenarios of tasks in the conformance suite call, as their texts describe them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from cubicle.tools.arguments import Arguments
from cubicle.tools.base import Answer, Call, TaskSupport, Tool, fail, say, schema
from cubicle.tools.questions import CannotAsk, Question


class Fixture:
    """A tool of the suite."""

    outlives_caller = False
    name = ""
    description = "A tool of the conformance suite."
    schema: Mapping[str, Any] = schema({}, ())
    task_support: TaskSupport = "optional"

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        raise NotImplementedError


class Greet(Fixture):
    name = "greet"
    schema = schema({"name": {"type": "string"}}, ("name",))
    task_support = "forbidden"

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        return say(f"Hello, {arguments.text('name')}!")


class SlowCompute(Fixture):
    name = "slow_compute"
    schema = schema({"seconds": {"type": "number"}, "label": {"type": "string"}}, ())

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        await asyncio.sleep(arguments.optional_number("seconds", 0, 100) or 0)
        return say("computed")


class FailingJob(Fixture):
    name = "failing_job"
    task_support = "required"

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        await asyncio.sleep(1)
        return fail("It failed.")


class ProtocolErrorJob(Fixture):
    name = "protocol_error_job"

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        await asyncio.sleep(0.7)
        raise RuntimeError("as it should")


_CONFIRM = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
_NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class ConfirmDelete(Fixture):
    name = "confirm_delete"
    schema = schema({"filename": {"type": "string"}}, ())

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        file = arguments.optional_text("filename") or "it"
        try:
            (reply,) = await call.ask([Question(f"Delete {file}?", _CONFIRM)])
        except CannotAsk:
            return fail("This needs a client that asks its user.")
        confirmed = reply.action == "accept" and reply.content.get("confirm") is True
        return say(f"Deleted {file}." if confirmed else f"{file} stays.")


class MultiInput(Fixture):
    name = "multi_input"

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        replies = await call.ask([Question("Who are you?", _NAME), Question("Who is next?", _NAME)])
        return say(" and ".join(str(reply.content.get("name")) for reply in replies))


class ToolWithTask(Fixture):
    name = "test_tool_with_task"
    task_support = "required"
    asks_first: Mapping[str, Question] = {"user_name": Question("What is your name?", _NAME)}

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        await asyncio.sleep(0.7)
        given = arguments.values.get("user_name")
        return say(f"Hello, {given.get('name')}!" if isinstance(given, dict) else "Hello, whoever you are!")


FIXTURES: tuple[Tool, ...] = (
    Greet(),
    SlowCompute(),
    FailingJob(),
    ProtocolErrorJob(),
    ConfirmDelete(),
    MultiInput(),
    ToolWithTask(),
)
