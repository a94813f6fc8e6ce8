"""A tool that counts its calls and how they end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cubicle.metrics.metrics import Metrics
from cubicle.tools.arguments import Arguments
from cubicle.tools.base import Answer, Call, Tool, task_support
from cubicle.tools.outcomes import outcome_of, outcome_of_error
from cubicle.tools.registry import Registry


class MeasuredTool:
    """The same tool to whoever calls it."""

    def __init__(self, tool: Tool, metrics: Metrics) -> None:
        self._tool = tool
        self._metrics = metrics
        self.name = tool.name
        self.description = tool.description
        self.schema: Mapping[str, Any] = tool.schema
        self.outlives_caller = tool.outlives_caller
        self.task_support = task_support(tool)

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        began, outcome = time.perf_counter(), "crashed"
        self._metrics.call_began(self.name)
        try:
            answer = await self._tool(call, arguments)
            outcome = outcome_of(answer)
            return answer
        except BaseException as error:
            outcome = outcome_of_error(error)
            raise
        finally:
            seconds, chat = time.perf_counter() - began, call.caller.chat
            self._metrics.call_ended(self.name, outcome, seconds, chat.tenant, chat.id)


def measured(registry: Registry, metrics: Metrics) -> Registry:
    """The same tools, each of which counts its calls."""
    return replace(registry, tools=tuple(MeasuredTool(tool, metrics) for tool in registry.tools))
