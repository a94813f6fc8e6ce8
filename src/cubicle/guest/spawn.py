"""Starting a program as the user."""

from __future__ import annotations

import errno
import os
import signal

from . import process_table
from .connection import OperationRefused
from .identity import Identity
from .wire import ErrorCode

_FULL = "the sandbox has as many processes as it may have, and what runs leaves no room for another"
_DEFAULTED = (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ)  # ignored by the guest or its Python


class Program:
    """What to start: words, variables, folder, the mark that it wears, and whether in a session of its own."""

    __slots__ = ("argv", "cwd", "env", "mark", "session")

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str, mark: int, session: bool) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.mark = mark
        self.session = session


def start(identity: Identity, program: Program, streams: tuple[int, int, int]) -> int:
    """Start it in this process's place under the root, as its child; its pid. Raises OperationRefused."""
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)]
    spawn = os.posix_spawn if "/" in program.argv[0] else os.posix_spawnp
    process_table.wear(program.mark)
    with identity.spawner():
        try:
            os.chdir(program.cwd)
        except OSError as error:
            raise OperationRefused(
                ErrorCode.BAD_CWD, "the working directory %s: %s" % (program.cwd, error.strerror)
            ) from None
        try:
            return spawn(
                program.argv[0],
                program.argv,
                program.env,
                file_actions=actions,
                setsid=program.session,
                setsigmask=(),
                setsigdef=_DEFAULTED,
            )
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise OperationRefused(ErrorCode.NO_PROCESSES, _FULL) from None
            raise OperationRefused(ErrorCode.BAD_COMMAND, "%s: %s" % (program.argv[0], error.strerror)) from None
        finally:
            os.chdir("/")


class Starter:
    """Starts programs as children of the guest itself, which is the user for the moment that this takes."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def start(self, program: Program, streams: tuple[int, int, int]) -> int:
        """The pid of what was started. Raises OperationRefused."""
        pid = start(self._identity, program, streams)
        try:
            adjustment = os.open("/proc/%d/oom_score_adj" % pid, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(adjustment, b"300")
            finally:
                os.close(adjustment)
        except OSError:
            pass
        return pid

    def reaped(self, pid: int) -> None:
        """A child of the guest's ended."""
