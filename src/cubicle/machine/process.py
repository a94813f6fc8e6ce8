"""A command that runs in a sandbox, as the host sees it."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from cubicle.guest import operations
from cubicle.guest.operations import Attached, Exit, Started
from cubicle.guest.wire import ErrorCode
from cubicle.machine.connection import Channel, GuestLink
from cubicle.machine.errors import MachineError
from cubicle.machine.items import Data, End


class Process:
    """One command. Read its output, or wait for its end (which passes over what is left of the output)."""

    def __init__(self, line: GuestLink, channel: Channel[Any, Exit], begun: Started | Attached) -> None:
        self._line = line
        self._channel = channel
        self.id = (begun.attached if isinstance(begun, Attached) else begun.started)[:100]
        self.pid = begun.pid or None
        self.offset = begun.offset if isinstance(begun, Attached) else 0
        """Where in the whole output what is heard begins: over 0 only after attaching late."""
        self.head, self.gap = begun.head, begun.gap
        """After the first `head` bytes that are heard, so many are missing: of one that is followed late."""
        self.again = isinstance(begun, Started) and begun.again
        """It was started before, and is only followed."""
        self.exit: Exit | None = None
        self.detached = False

    @property
    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """(stream, bytes) as they come, until the command ends; 1 is the output, 2 the error output if kept apart."""
        return self._output()

    async def _output(self) -> AsyncIterator[tuple[int, bytes]]:
        while self.exit is None:
            item = await self._channel.get()
            if isinstance(item, Data):
                yield item.stream, item.bytes
            elif isinstance(item, End):
                self.exit = item.answer

    async def wait(self) -> Exit:
        async for _ in self.output:
            pass
        if self.exit is None:
            raise MachineError(ErrorCode.IO, "The command ended without a word.")
        return self.exit

    async def write(self, data: bytes) -> None:
        """Feed its input; waits while the command does not read."""
        await self._channel.send(data)

    def close_input(self) -> None:
        self._channel.eof()

    async def signal(self, number: int) -> None:
        await self._line.ask(operations.Signal(id=self.id, signal=number))

    async def resize(self, columns: int, rows: int) -> None:
        await self._line.ask(operations.Resize(id=self.id, columns=columns, rows=rows))

    async def kill(self, patience: float = 2.0) -> None:
        """TERM, patience, KILL: everything that the command started. The end comes as usual."""
        await self._line.ask(operations.Kill(id=self.id, patience=patience))

    def detach(self) -> None:
        """Leaving the block lets the command go on."""
        self.detached = True

    def let_go(self) -> None:
        """Stop hearing the command; it goes on and can be attached to."""
        if not self._channel.over:
            self._line.forget(self._line.open(operations.Release(id=self.id)))
            self._line.forget(self._channel)


@asynccontextmanager
async def process_of(
    line: GuestLink,
    channel: Channel[Started, Exit] | Channel[Attached, Exit],
    stays: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Process]:
    """The command of a channel; leaving the block ends it, unless it is detached."""
    process: Process | None = None
    try:
        began = time.perf_counter()
        process = Process(line, channel, await channel.event())
        line.on_round_trip(time.perf_counter() - began)
        yield process
    finally:
        if process is not None and process.detached:
            process.let_go()
        elif process is None and stays():
            line.forget(channel)
        else:
            channel.cancel()


async def look_for(line: GuestLink, id: str, *, keeps: bool) -> None:
    """MachineError `not-found` if the guest cannot tell anything of this id. Who follows it is not disturbed."""
    try:  # a guest that keeps no records refuses 0; the other signal does nothing to a command that goes on
        await line.ask(operations.Signal(id=id, signal=0 if keeps else signal.SIGCONT))
    except MachineError as error:
        if error.code is ErrorCode.NOT_FOUND:
            raise
