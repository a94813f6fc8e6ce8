"""Tools that the scenarios of tasks in the conformance suite call, as their texts describe them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from cubicle.tools.arguments import Arguments
from cubicle.tools.base import Answer, Call, TaskSupport, Tool, fail, say, schema


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


class ConfirmDelete(Fixture):
    """Asks nothing, as no tool of this service does: the suite skips what would follow its question."""

    name = "confirm_delete"
    task_support = "forbidden"

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        return say("It was not asked for.")


FIXTURES: tuple[Tool, ...] = (Greet(), SlowCompute(), FailingJob(), ProtocolErrorJob(), ConfirmDelete())
