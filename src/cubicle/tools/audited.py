"""A tool whose calls the audit log tells of."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cubicle.audit.audit import Audit, AuditUnavailable
from cubicle.core.arguments_hash import arguments_hash
from cubicle.tools.arguments import Arguments
from cubicle.tools.base import Answer, Call, NotBegun, TextContent, Tool, task_support
from cubicle.tools.outcomes import outcome_of, outcome_of_error
from cubicle.tools.registry import Registry

RUNNING_SECONDS = 0.5
"""A call that lasts longer is told of while it runs: whoever kills the service does not make it unseen."""
_LARGE = 256 * 1024
"""Bytes of a result that are hashed in a thread."""


class AuditedTool:
    """The same tool to whoever calls it; without an audit log, where one is required, no call begins."""

    def __init__(self, tool: Tool, audit: Audit) -> None:
        self._tool = tool
        self._audit = audit
        self.name = tool.name
        self.description = tool.description
        self.schema: Mapping[str, Any] = tool.schema
        self.outlives_caller = tool.outlives_caller
        self.task_support = task_support(tool)

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        if not self._audit.keeps:
            return await self._tool(call, arguments)
        if call.begun is None and not call.only_known:  # what runs in the sandbox already is not left alone there
            try:
                self._audit.require()
            except AuditUnavailable as no:
                raise NotBegun(f"The call was not run. {no}") from None
        given = call.arguments_hash or arguments_hash(self.name, arguments.values)
        fields: dict[str, Any] = {"call": call.id, "tool": self.name}
        fields["arguments"] = self._audit.digest("arguments", given)
        fields["arguments_size"] = _size(arguments.values)
        if call.begun is not None:
            fields["resumed"] = True
        began = time.perf_counter()
        running = asyncio.get_running_loop().call_later(RUNNING_SECONDS, self._record, call, fields, "call_running")
        try:
            answer = await self._tool(call, arguments)
        except BaseException as error:
            left = isinstance(error, asyncio.CancelledError) and call.leaving()
            fields["outcome"] = "detached" if left else outcome_of_error(error)
            raise
        else:
            fields["outcome"] = outcome_of(answer)
            fields["result"], fields["result_size"] = await self._digest(answer)
            return answer
        finally:
            running.cancel()
            fields["seconds"] = round(time.perf_counter() - began, 3)
            self._record(call, fields, "call")

    def _record(self, call: Call, fields: Mapping[str, Any], kind: str) -> None:
        self._audit.record(kind, fields, chat=call.caller.chat, identity=call.caller.identity)

    async def _digest(self, answer: Answer) -> tuple[str, int]:
        parts = [
            block.text.encode("utf-8", "surrogatepass") if isinstance(block, TextContent) else block.data
            for block in answer.blocks
        ]
        size = sum(map(len, parts))
        hashed = await asyncio.to_thread(_hash, parts) if size > _LARGE else _hash(parts)
        return self._audit.digest("result", hashed), size


def _hash(parts: list[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def _size(arguments: Mapping[str, Any]) -> int:
    """Characters of the texts among the arguments."""
    return sum(len(value) for value in arguments.values() if isinstance(value, str))


def audited(registry: Registry, audit: Audit) -> Registry:
    """The same tools, each of which the audit log tells of."""
    return replace(registry, tools=tuple(AuditedTool(tool, audit) for tool in registry.tools), audit=audit)
