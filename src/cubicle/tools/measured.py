"""A tool that counts its calls and how they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cubicle.machine.errors import Gone, SandboxError
from cubicle.metrics.metrics import Metrics
from cubicle.tools.arguments import Arguments, BadArgument
from cubicle.tools.base import Answer, Call, Tool, task_support
from cubicle.tools.registry import Registry

OUTCOMES = (
    "done", "failed", "timed_out", "out_of_memory", "killed", "bad_argument", "sandbox_gone", "sandbox_failed",
    "cancelled", "crashed",
)  # fmt: skip


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
            outcome = _outcome(answer)
            return answer
        except BadArgument:
            outcome = "bad_argument"
            raise
        except SandboxError as error:
            outcome = "sandbox_gone" if isinstance(error, Gone) else "sandbox_failed"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            seconds, chat = time.perf_counter() - began, call.caller.chat
            self._metrics.call_ended(self.name, outcome, seconds, chat.tenant, chat.id)


def _outcome(answer: Answer) -> str:
    exit = answer.exit
    if exit is not None and exit.timed_out:
        return "timed_out"
    if exit is not None and exit.out_of_memory:
        return "out_of_memory"
    if exit is not None and exit.code is None:
        return "killed"
    return "failed" if answer.error else "done"


def measured(registry: Registry, metrics: Metrics) -> Registry:
    """The same tools, each of which counts its calls."""
    return replace(registry, tools=tuple(MeasuredTool(tool, metrics) for tool in registry.tools))
