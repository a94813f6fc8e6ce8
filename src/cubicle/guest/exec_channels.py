"""The channels of commands: run, attach, signal, resize, kill."""

from __future__ import annotations

import os
from collections import deque

from . import operations
from .commands import Command, CommandTable
from .connection import GuestChannel, GuestConnection, OperationRefused
from .descriptors import window_size
from .loop import WRITE
from .wire import ErrorCode


def channels(command_table: CommandTable) -> dict[str, type[GuestChannel]]:
    """The channel classes, bound to this sandbox's commands."""

    kinds = (RunChannel, Attach, Signal, Resize, Kill, Release)
    return {kind.REQUEST.OP: type(kind.__name__, (kind,), {"command_table": command_table}) for kind in kinds}


class CommandChannel(GuestChannel):
    """A channel that has to do with a command."""

    command_table: CommandTable


class OutputChannel(CommandChannel):
    """A channel that hears a command's output and feeds its input."""

    def __init__(self, link: GuestConnection, number: int) -> None:
        super().__init__(link, number)
        self.command: Command | None = None
        self._input: deque[bytes] = deque()
        self._input_ends = False

    def ready(self) -> None:
        if self.command is not None:
            self.command.pump()

    def on_data(self, stream: int, payload: memoryview) -> None:
        self._input.append(bytes(payload))
        self._feed()

    def on_eof(self, stream: int) -> None:
        self._input_ends = True
        self._feed()

    def on_lost(self) -> None:
        """The service is gone, the command goes on: somebody may attach again."""
        if self.command is not None and self.command.listener is self:
            self.command.attach(None)

    def _feed(self) -> None:
        command = self.command
        if command is None:
            return
        loop = command.command_table.loop
        while self._input and command.input >= 0:
            try:
                done = os.write(command.input, self._input[0])
            except (BlockingIOError, InterruptedError):
                loop.watch(command.input, WRITE, lambda events: self._feed())
                return
            except OSError:
                command.close_input()
                break
            self.give(done)
            if done < len(self._input[0]):
                self._input[0] = self._input[0][done:]
            else:
                self._input.popleft()
        if command.input < 0:
            self.give(sum(map(len, self._input)))
            self._input.clear()
            return
        loop.unwatch(command.input)
        if self._input_ends and not command.has_pty:
            command.close_input()

    def begin_again(self, command_id: str, begun: type[operations.Started] | type[operations.Attached]) -> bool:
        """Follow a command of this id, or tell what is kept of it; whether there is one. Raises OperationRefused."""
        command = self.command_table.commands.get(command_id)
        if command is not None and not command.kept:
            tail = command.tail
            fields: dict[str, object] = {"pid": command.pid}
            if command.keep:
                fields.update(head=sum(len(chunk) for _, chunk in tail.head), gap=tail.gap)
            self._tell(begun, command_id, 0 if command.keep else tail.offset, fields, tail.chunks())
            if command.answered:
                self.end(command.final)
            else:
                self.command = command
                command.attach(self)
            return True
        record = self.command_table.records.find(command_id)
        if record is None:
            return False
        if record.exit is None:
            raise OperationRefused(ErrorCode.INTERRUPTED, "the sandbox stopped while this command ran")
        self._tell(begun, command_id, 0, {"head": record.head, "gap": record.gap}, record.output)
        self.end(operations.Exit.decode(record.exit))
        return True

    def _tell(
        self,
        begun: type[operations.Started] | type[operations.Attached],
        command_id: str,
        offset: int,
        fields: dict[str, object],
        output: list[tuple[int, bytes]],
    ) -> None:
        if begun is operations.Started:
            self.event(operations.Started(started=command_id, again=True, kept=True, **fields))  # type: ignore[arg-type]
        else:
            self.event(operations.Attached(attached=command_id, offset=offset, **fields))  # type: ignore[arg-type]
        for stream, chunk in output:
            self.data(chunk, stream)


class RunChannel(OutputChannel):
    """Start a command and stay with it; one that is kept, and was started before, is only followed."""

    REQUEST = operations.Run

    def begin(self, request: operations.Run) -> None:
        if request.id is not None and (request.keep or request.known):
            if self.begin_again(request.id, operations.Started):
                return
            if request.known:
                raise self.command_table.unknown()
        command = self.command = self.command_table.start(request)
        begun = operations.Started(started=command.id, pid=command.pid, kept=command.keep)
        self.event(begun, hurries=request.stdin or request.pty is not None)  # a short command ends in a moment
        command.attach(self)

    def on_cancel(self) -> None:
        command = self.command
        if command is not None and command.listener is self:
            command.listener = None
            command.kill(0.4)
            command.pump()


class Attach(OutputChannel):
    """Hear a command again: what is kept of its output first, then what comes."""

    REQUEST = operations.Attach

    def begin(self, request: operations.Attach) -> None:
        if not self.begin_again(request.id, operations.Attached):
            raise self.command_table.unknown()

    def on_cancel(self) -> None:
        self.on_lost()


class Signal(CommandChannel):
    """Signal a command's process group; 0 only asks whether something is known of it."""

    REQUEST = operations.Signal

    def begin(self, request: operations.Signal) -> None:
        if not request.signal:
            if self.command_table.records.find(request.id) is None:
                self.command_table.find(request.id)
            self.end()
            return
        command = self.command_table.find(request.id)
        if not command.ended:
            os.killpg(command.pid, request.signal)
        self.end()


class Resize(CommandChannel):
    """Tell a command with a terminal its new size."""

    REQUEST = operations.Resize

    def begin(self, request: operations.Resize) -> None:
        command = self.command_table.find(request.id)
        if command.has_pty:
            for fd in command.outputs:
                window_size(fd, max(1, min(request.columns, 1000)), max(1, min(request.rows, 1000)))
        self.end()


class Kill(CommandChannel):
    """End a command and everything that it started."""

    REQUEST = operations.Kill

    def begin(self, request: operations.Kill) -> None:
        command = self.command_table.find(request.id)
        if command.answered:
            self.command_table.marks.strike(command.mark, 9)
        else:
            command.kill(min(request.patience, 60.0))
        self.end()


class Release(CommandChannel):
    """Nobody listens to the command any more; it goes on, and its last output is kept."""

    REQUEST = operations.Release

    def begin(self, request: operations.Release) -> None:
        command = self.command_table.find(request.id)
        listener = command.listener
        if listener is not None and listener.link is self.link:
            self.link.forget(listener)
            command.attach(None)
        self.end()
