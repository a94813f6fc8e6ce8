"""A command that runs in a sandbox, as the host sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from cubicle.machine.answers import count_of, seconds_of, text_of
from cubicle.machine.connection import Channel, Data, End, Line, MachineError


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended."""

    code: int | None
    signal: int | None
    timed_out: bool
    out_of_memory: bool
    seconds: float
    made_room: int = 0
    """How many background processes of earlier commands were ended, because no process could be started."""

    @property
    def status(self) -> int:
        """The exit code as a shell would say it."""
        if self.code is not None:
            return self.code
        return 128 + (self.signal or 0)

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Exit:
        code, signal = count_of(fields, "code", -1), count_of(fields, "signal", -1)
        return cls(
            code if 0 <= code <= 255 else None,
            signal if 0 <= signal <= 64 else None,
            fields.get("timed_out") is True,
            fields.get("out_of_memory") is True,
            seconds_of(fields, "seconds"),
            count_of(fields, "made_room"),
        )


class Process:
    """One command. Read its output, or wait for its end (which passes over what is left of the output)."""

    def __init__(self, line: Line, channel: Channel, first: dict[str, Any]) -> None:
        self._line = line
        self._channel = channel
        self.id = (text_of(first, "started") or text_of(first, "attached"))[:100]
        self.pid = count_of(first, "pid") or None
        self.offset = count_of(first, "offset")
        """Where in the whole output what is heard begins: over 0 only after attaching late."""
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
                self.exit = Exit.parse(item.fields)

    async def wait(self) -> Exit:
        async for _ in self.output:
            pass
        if self.exit is None:
            raise MachineError("io", "The command ended without a word.")
        return self.exit

    async def write(self, data: bytes) -> None:
        """Feed its input; waits while the command does not read."""
        await self._channel.send(data)

    def close_input(self) -> None:
        self._channel.eof()

    async def signal(self, number: int) -> None:
        await self._line.ask("signal", id=self.id, signal=number)

    async def resize(self, columns: int, rows: int) -> None:
        await self._line.ask("resize", id=self.id, columns=columns, rows=rows)

    async def kill(self, patience: float = 2.0) -> None:
        """TERM, patience, KILL: everything that the command started. The end comes as usual."""
        await self._line.ask("kill", id=self.id, patience=patience)

    def detach(self) -> None:
        """Leaving the block lets the command go on."""
        self.detached = True

    def let_go(self) -> None:
        """Stop hearing the command; it goes on and can be attached to."""
        if not self._channel.over:
            self._line.forget(self._line.open("release", id=self.id))
            self._line.forget(self._channel)
