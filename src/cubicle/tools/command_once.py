"""A call's command in the sandbox: started once, whichever service is asked for it, and followed after that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import Machine
from cubicle.machine.process import Process
from cubicle.tools.base import Call

_SLACK = 600.0
"""The service ends what nobody follows. The sandbox does so by itself, later, when no service knows of it: one that
starts under load may be connected for minutes before it serves."""
INTERRUPTED = (
    "The sandbox or the service stopped while this ran, so it may have been done in part. It was not done again. Look "
    "at what it left behind before you call again."
)


@asynccontextmanager
async def command_of(
    machine: Machine, call: Call, command: str, resume_seconds: float, **options: Any
) -> AsyncIterator[Process]:
    """Run the call's command, or follow it if it was started before. MachineError `interrupted`: it may have run in
    part. Leaving the block ends it, unless the service stops and its caller may come back to another one."""
    options |= {"id": call.command_id, "keep": bool(call.identity), "unattended": resume_seconds + _SLACK}
    options["stays"] = call.leaving
    call.reached("starts")
    start = machine.run(command, **options) if call.begun is None else _gone_on(machine, call, command, options)
    async with start as process:
        call.reached("runs")
        try:
            yield process
        except asyncio.CancelledError:
            if call.leaving():
                process.detach()
            elif process.detached:
                await process.kill()
            raise


@asynccontextmanager
async def _gone_on(machine: Machine, call: Call, command: str, options: dict[str, Any]) -> AsyncIterator[Process]:
    """The command of a call that an earlier service began."""
    async with AsyncExitStack() as stack:
        process = await _known(stack, machine, call, command, options)
        if process is None:
            process = await stack.enter_async_context(machine.run(command, **options))
        yield process


async def _known(
    stack: AsyncExitStack, machine: Machine, call: Call, command: str, options: dict[str, Any]
) -> Process | None:
    """The command that an earlier service began; None if it never began."""
    try:
        if machine.keeps:
            return await stack.enter_async_context(machine.run(command, known=True, **options))
        return await stack.enter_async_context(machine.attach(call.command_id))
    except MachineError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        require_unbegun(machine, call, error)
        return None


def require_unbegun(machine: Machine, call: Call, unknown: MachineError) -> None:
    """The sandbox does not know a call that a service before this one began: raise MachineError `interrupted` unless
    it is certain that nothing of it was done, and it may be done now."""
    forgotten = unknown.details.forgotten
    certain = machine.keeps and call.same_boot and (call.begun or 0.0) > forgotten + 1.0
    if call.only_known or not call.identity or not certain:
        raise MachineError(ErrorCode.INTERRUPTED, INTERRUPTED)


async def require_memory(machine: Machine, call: Call) -> None:
    """For a change of a file, which the sandbox makes once by itself as long as it remembers: MachineError
    `interrupted` if it may have made it and forgotten that."""
    if call.begun is None:
        return
    if not (machine.keeps and call.same_boot):
        raise MachineError(ErrorCode.INTERRUPTED, INTERRUPTED)
    try:
        await machine.look_for(call.command_id)
    except MachineError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        require_unbegun(machine, call, error)
