"""A tool that begins a call only within the quotas of its caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cubicle.quotas.limits import Overloaded, QuotaExceeded
from cubicle.quotas.quotas import Quotas
from cubicle.tools.arguments import Arguments
from cubicle.tools.base import Answer, Call, NotBegun, Tool, task_support
from cubicle.tools.registry import Registry


class LimitedTool:
    """The same tool to whoever calls it; over a limit its answer is an error that says which one, and when it ends."""

    def __init__(self, tool: Tool, quotas: Quotas) -> None:
        self._tool = tool
        self._quotas = quotas
        self.name = tool.name
        self.description = tool.description
        self.schema: Mapping[str, Any] = tool.schema
        self.outlives_caller = tool.outlives_caller
        self.task_support = task_support(tool)

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        if call.only_known or call.begun is not None:  # it was let in before, and goes on in the sandbox
            return await self._tool(call, arguments)
        caller = call.caller
        key_id = caller.identity.key_id if caller.identity is not None else ""
        begun = False
        try:
            async with self._quotas.call(caller.chat, caller.email, key_id):
                begun = True
                with self._quotas.starts.followed(caller.chat, call.report):
                    return await self._tool(call, arguments)
        except (QuotaExceeded, Overloaded) as over:
            if begun:
                raise
            raise NotBegun(f"The call was not run. {over}") from None


def limited(registry: Registry, quotas: Quotas) -> Registry:
    """The same tools, within the quotas."""
    return replace(registry, tools=tuple(LimitedTool(tool, quotas) for tool in registry.tools))
