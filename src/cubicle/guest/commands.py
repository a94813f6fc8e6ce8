"""Commands: started as the user, limited in time, streamed with back-pressure, kept for whoever attaches again."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable

from . import operations, process_table, wire
from .call_records import CallRecords
from .connection import GuestChannel, OperationRefused
from .descriptors import waiting, window_size
from .identity import Identity
from .listening import ListeningPorts
from .loop import READ, Loop, Timer, tell
from .output_buffer import HEAD, OutputBuffer
from .spawn import Program, Starter
from .spec import Spec
from .wire import ErrorCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .spawn_helper import SpawnHelper

GRACE = 0.5
TERM_TO_KILL = 2.0
_KEPT = 16
_LINGERING = 64
_LOOK_SECONDS = 1.0


class Command:
    """One command, from its start until the last of its output is delivered."""

    def __init__(self, command_table: CommandTable, spec: Spec) -> None:
        self.command_table = command_table
        self.id = spec.id
        self.keep = spec.keep
        self.mark = 0
        self.pid = 0
        self.started = time.monotonic()
        self.listener: GuestChannel | None = None
        self.tail = OutputBuffer(HEAD if spec.keep else 0)
        self.kept = False  # whether its record says how it ended
        self.unattended = spec.unattended
        self.alone = 0.0  # for how long a host was there, and nobody followed it
        self.outputs: dict[int, int] = {}  # descriptor -> stream
        self.input = -1
        self.has_pty = spec.pty is not None
        self.code: int | None = None
        self.signal: int | None = None
        self.timed_out = False
        self.made_room = 0  # how many processes of earlier commands were ended, so that this one could start
        self.ended = False  # the program itself is over
        self.answered = False  # the answer is made
        self.final = operations.Exit()
        self._rest: int | None = None  # after the grace: how many more bytes belong to the answer
        self._kills = command_table.kills.count()
        self._timers: list[Timer] = []
        self._ending = False
        self._spawn(spec)
        if spec.timeout is not None:
            self._later(spec.timeout, self._out_of_time)

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timers.append(self.command_table.loop.later(seconds, callback))

    def _spawn(self, spec: Spec) -> None:
        mine: list[int] = []
        theirs: list[int] = []
        argv = spec.argv
        try:
            if spec.pty is not None:
                master, slave = os.openpty()
                mine.append(master)
                theirs.append(slave)
                window_size(master, *spec.pty)
                os.fchown(slave, self.command_table.identity.uid if self.command_table.identity.switches else -1, -1)
                stdin = stdout = stderr = slave
                self.input = os.dup(master)
                mine.append(self.input)
                self.outputs[master] = 1
                argv = ["setsid", "--ctty", *argv]
            else:
                stdin = self.command_table.nothing
                if spec.stdin:
                    stdin, self.input = os.pipe()
                    mine.append(self.input)
                    theirs.append(stdin)
                out, stdout = os.pipe()
                mine.append(out)
                theirs.append(stdout)
                self.outputs[out] = 1
                stderr = stdout
                if not spec.merge:
                    err, stderr = os.pipe()
                    mine.append(err)
                    theirs.append(stderr)
                    self.outputs[err] = 2
            self.mark = self.command_table.marks.next()
            program = Program(argv, spec.env, spec.cwd, self.mark, spec.pty is None)
            self.pid = self.command_table.starter.start(program, (stdin, stdout, stderr))
        except (OSError, OperationRefused):
            for fd in mine:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        for fd in self.outputs:
            os.set_blocking(fd, False)
        if self.input >= 0:
            os.set_blocking(self.input, False)

    def attach(self, listener: GuestChannel | None) -> None:
        """From now on this listener hears the output; the one before, if any, hears nothing more."""
        if listener is not None and listener.closed:
            listener = None  # its connection was lost when it was told of the start
        before, self.listener = self.listener, listener
        self.alone = 0.0
        if listener is None and self.unattended is not None:
            self.command_table.look_after(self)
        if before is not None and listener is not None and not before.closed:
            before.fail(OperationRefused(ErrorCode.TAKEN, "another connection attached to this command"))
        self.pump()

    def pump(self) -> None:
        """Watch the outputs for which there is room."""
        listener = self.listener
        for fd in self.outputs:
            if listener is None or self.answered or listener.may_send:
                self.command_table.loop.watch(fd, READ, self._reader(fd))
            else:
                self.command_table.loop.unwatch(fd)
        self._check_done()

    def _reader(self, fd: int) -> Callable[[int], None]:
        return lambda events: self._read(fd)

    def _read(self, fd: int) -> None:
        listener = self.listener if not self.answered else None
        room = wire.MAX_PAYLOAD if listener is None else listener.may_send
        if not room:
            self.pump()
            return
        try:
            chunk = os.read(fd, room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            chunk = b""  # a pty whose other side is closed says EIO
        if not chunk:
            self._close_output(fd)
            self._check_done()
            return
        if self.answered:
            return  # a background process writes on; nobody listens, and it must not block or die for that
        self.tail.add(self.outputs[fd], chunk)
        if listener is not None:
            listener.data(chunk, self.outputs[fd])
            if not listener.may_send:
                self.pump()
        if self._rest is not None:
            self._rest -= len(chunk)
            self._check_done()

    def _close_output(self, fd: int) -> None:
        self.command_table.loop.unwatch(fd)
        os.close(fd)
        del self.outputs[fd]

    def exited(self, status: int) -> None:
        """The program is over; its output may still be in the pipe."""
        self.ended = True
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
        else:
            self.code = os.WEXITSTATUS(status)
        self._later(GRACE, self._grace_over)
        for fd in list(self.outputs):
            self._read(fd)
        self._check_done()

    def _grace_over(self) -> None:
        if self.answered:
            return
        self._rest = sum(waiting(fd) for fd in self.outputs)
        self._check_done()

    def _check_done(self) -> None:
        drained = not self.outputs or (self._rest is not None and self._rest <= 0)
        if self.ended and drained and not self._ending and not self.answered:
            self._answer()

    def _answer(self) -> None:
        self.answered = True
        for timer in self._timers:
            timer.cancel()
        self.close_input()
        self.final = self.exit()
        if self.keep:
            self._keep()
        if self.listener is not None:
            self.listener.end(self.final)
        self.command_table.settle(self)
        if self.outputs:
            self.command_table.linger(self)
            self.pump()

    def _keep(self) -> None:
        head = sum(len(chunk) for _, chunk in self.tail.head)
        records = self.command_table.records
        self.kept = records.finish(self.id, self.final, self.tail.chunks(), head, self.tail.gap)
        if self.kept:
            self.tail.clear()

    def exit(self) -> operations.Exit:
        failed = self.code != 0 or self.signal is not None
        return operations.Exit(
            code=self.code,
            signal=self.signal,
            timed_out=self.timed_out,
            out_of_memory=failed and self.command_table.kills.count() > self._kills,
            seconds=round(time.monotonic() - self.started, 6),
            bytes=self.tail.total,
            made_room=self.made_room,
            listening=self.command_table.listening.mark(),
        )

    def close_input(self) -> None:
        """Nobody writes to it any more, though somebody may still be about to."""
        if self.input >= 0:
            self.command_table.loop.unwatch(self.input)
            os.close(self.input)
            self.input = -1

    def release(self) -> None:
        """Close what a background process still holds the other end of."""
        for fd in list(self.outputs):
            self._close_output(fd)

    def _out_of_time(self) -> None:
        """A guest that could not run for long, in a frozen sandbox say, hears of the end only now: it may be older."""
        self.command_table.reap()
        if not self.ended:
            self.timed_out = True
            self.kill(TERM_TO_KILL)

    def kill(self, patience: float) -> None:
        """TERM, a while, KILL: everything that the command started; then the answer is made."""
        if self._ending or self.answered:
            return
        self._ending = True
        self.command_table.marks.strike(self.mark, signal.SIGTERM, self.pid)
        self.command_table.marks.strike(self.mark, signal.SIGCONT, self.pid)
        self._watch_end(time.monotonic() + patience)

    def _watch_end(self, deadline: float) -> None:
        late = time.monotonic() >= deadline
        marks = self.command_table.marks
        left = marks.strike(self.mark, signal.SIGKILL, self.pid) if late else len(marks.worn(self.mark))
        given_up = time.monotonic() >= deadline + 1.0
        if given_up or (self.ended and not left):
            self._ending = False
            self.ended = True
            self._grace_over()
            return
        self.command_table.loop.later(0.02, lambda: self._watch_end(deadline))


class CommandTable:
    """All commands of the sandbox: starts them, reaps them, remembers the last few."""

    def __init__(
        self,
        loop: Loop,
        identity: Identity,
        home: str,
        env: dict[str, str],
        records: CallRecords,
        listening: ListeningPorts,
        connected: Callable[[], bool],
        through_helper: bool = False,
    ) -> None:
        self.loop = loop
        self.records = records
        self.listening = listening
        self._connected = connected
        self._alone: list[Command] = []
        self.identity = identity
        self.home = home
        self.env = env
        self.marks = process_table.ProcessTable(apart=identity.switches)
        self.kills = process_table.MemoryKills()
        self.nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self.commands: dict[str, Command] = {}
        self._by_pid: dict[int, Command] = {}
        self.starter: Starter | SpawnHelper = Starter(identity)
        if through_helper:
            from .spawn_helper import SpawnHelper  # on gVisor alone

            self.starter = SpawnHelper(loop, identity, self.marks, self._ended)
        self._settled: deque[Command] = deque()
        self._lingering: deque[Command] = deque()

    def start(self, request: operations.Run) -> Command:
        spec = Spec(request, self.home, self.env)
        if spec.id in self.commands:
            raise OperationRefused(ErrorCode.EXISTS, "a command of this id is there already")
        spec.keep = spec.keep and self.records.begin(spec.id)
        try:
            command = self._started(spec)
        except (OSError, OperationRefused):
            if spec.keep:
                self.records.drop(spec.id)
            raise
        self.commands[command.id] = command
        self._by_pid[command.pid] = command
        return command

    def _started(self, spec: Spec) -> Command:
        try:
            return Command(self, spec)
        except OperationRefused as no:
            ended = self._make_room() if no.code is ErrorCode.NO_PROCESSES else 0
            if not ended:
                raise
        command = Command(self, spec)
        command.made_room = ended
        return command

    def look_after(self, command: Command) -> None:
        """Nobody follows it: it is killed if that stays so. Without a host the time does not count."""
        if not self._alone:
            self.loop.later(_LOOK_SECONDS, self._look)
        if command not in self._alone:
            self._alone.append(command)

    def _look(self) -> None:
        self._alone = [one for one in self._alone if one.listener is None and not one.answered]
        for command in self._alone if self._connected() else ():
            command.alone += _LOOK_SECONDS
            if command.unattended is not None and command.alone > command.unattended:
                command.kill(TERM_TO_KILL)
        if self._alone:
            self.loop.later(_LOOK_SECONDS, self._look)

    def _make_room(self) -> int:
        """End what earlier commands left in the background, a fork bomb say; how many processes that were.

        Only when no process can be started any more: without it, nobody could run even `kill`.
        """
        kept = {command.mark for command in self.commands.values() if not command.answered}
        ended: set[int] = set()
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            left = self.marks.others(kept)
            if not left:
                break
            ended.update(left)
            for number in (signal.SIGSTOP, signal.SIGKILL):
                process_table.signal_all(left, number)
            self.reap()
        return len(ended)

    def find(self, command_id: str) -> Command:
        command = self.commands.get(command_id)
        if command is None:
            raise self.unknown()
        return command

    def unknown(self) -> OperationRefused:
        why = operations.FailureDetails(forgotten=self.records.forgotten)
        return OperationRefused(ErrorCode.NOT_FOUND, "no command of this id is known", why)

    def reap(self) -> None:
        """Take every dead child, ours and the orphans that init inherits."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            try:
                self.starter.reaped(pid)
                self._ended(pid, status)
            except Exception:  # noqa: BLE001 — the ends of all others still have to be heard of
                tell()

    def _ended(self, pid: int, status: int) -> None:
        command = self._by_pid.pop(pid, None)
        if command is not None:
            command.exited(status)

    def settle(self, command: Command) -> None:
        """Remember an answered command for a while, in bounded number."""
        self._settled.append(command)
        while len(self._settled) > _KEPT:
            old = self._settled.popleft()
            self.commands.pop(old.id, None)

    def linger(self, command: Command) -> None:
        self._lingering.append(command)
        while len(self._lingering) > _LINGERING:
            self._lingering.popleft().release()
