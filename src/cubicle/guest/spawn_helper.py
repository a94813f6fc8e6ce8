"""A child of the guest that starts programs in its place.

Starting a program takes being the user for a moment. Linux shields process 1 from its own sandbox's signals meanwhile;
gVisor does not, and a user who sends SIGKILL without pause would end the sandbox. So there the helper takes that risk:
one that is killed is replaced, and what it started becomes the guest's own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
from collections.abc import Callable

from .connection import OperationRefused
from .identity import Identity
from .loop import READ, Loop
from .process_table import ProcessTable
from .spawn import Program, start
from .wire import ErrorCode

_SECONDS = 2
_NUDGES = 5
"""How long it may be silent before it is woken (somebody may have stopped it), and how often before it is replaced."""
_TRIES = 3
_CHUNK = 65536

_Answer = tuple[str, int, int, str, str]
"""What happened (started, ended, refused), to which process, its status; and why not."""


class SpawnHelper:
    """Starts programs as children of another process, and hears from it when they end."""

    def __init__(self, loop: Loop, identity: Identity, marks: ProcessTable, ended: Callable[[int, int], None]) -> None:
        self._loop = loop
        self._identity = identity
        self._marks = marks
        self._ended = ended
        self._children: set[int] = set()
        self._early: list[tuple[int, int]] = []
        self._heard = bytearray()
        self._socket: socket.socket | None = None
        self.pid = 0
        self._appoint()

    def start(self, program: Program, streams: tuple[int, int, int]) -> int:
        """The pid of what was started. Raises OperationRefused."""
        for _ in range(_TRIES):
            try:
                if self._socket is None:
                    self._appoint()
                return self._ask(program, streams)
            except OSError:
                before = self.pid
                self._dismiss()
                pid = self._untold(program.mark, before)
                if pid:
                    self._children.add(pid)
                    return pid
        raise OperationRefused(
            ErrorCode.NO_PROCESSES, "what runs in the sandbox keeps it from starting another program"
        )

    def reaped(self, pid: int) -> None:
        """A child of the guest's ended: the helper, or what a helper before it had started."""
        self._children.discard(pid)
        if pid == self.pid:
            self._dismiss()

    def _appoint(self) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            try:
                ours.close()
                _Desk(theirs, self._identity).serve()
            finally:
                os._exit(0)
        theirs.close()
        limit = struct.pack("ll", _SECONDS, 0)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, limit)
        self._socket = ours
        self._heard.clear()
        self._loop.watch(ours.fileno(), READ, self._listen)

    def _dismiss(self) -> None:
        if self._socket is None:
            return
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._socket = None
        try:
            os.kill(self.pid, signal.SIGKILL)
        except OSError:
            pass
        # Its children are the guest's now, save those that it had reaped and not yet told about. Not those of the
        # next helper, who may have reaped one whose end is still to be heard of.
        its = set(self._children)
        self._loop.soon(lambda: self._look_for_the_lost(its))

    def _look_for_the_lost(self, its: set[int]) -> None:
        for pid in its & self._children:
            if not os.path.exists("/proc/%d" % pid):
                self._children.discard(pid)
                self._ended(pid, signal.SIGKILL)

    def _untold(self, mark: int, helper: int) -> int:
        """What a helper had started when it was killed, before it could tell: it is the guest's own child now, and must
        not run twice. 0 if there is no such process."""
        try:
            os.waitid(os.P_PID, helper, os.WEXITED | os.WNOWAIT)
        except OSError:
            pass
        return min((pid for pid in self._marks.children(mark) if pid != helper), default=0)

    def _ask(self, program: Program, streams: tuple[int, int, int]) -> int:
        desk = self._socket
        if desk is None:
            raise ConnectionResetError
        data = _framed([program.argv, program.env, program.cwd, program.mark, program.session])
        sent = socket.send_fds(desk, [data], list(streams))
        if sent < len(data):
            desk.sendall(data[sent:])
        answer: _Answer | None = None
        while answer is None:
            for heard in self._answers(self._patiently(desk)):
                if heard[0] == "ended":
                    # Of a program before, or of this one already, and then right behind the word that it started.
                    self._early.append(heard[1:3])
                    self._loop.soon(self._tell_early)
                else:
                    answer = heard
        kind, pid, _, code, message = answer
        if kind == "refused":
            raise OperationRefused(ErrorCode(code), message)
        self._children.add(pid)
        return pid

    def _patiently(self, desk: socket.socket) -> bytes:
        for _ in range(_NUDGES):
            try:
                return desk.recv(_CHUNK)
            except BlockingIOError:
                os.kill(self.pid, signal.SIGCONT)
        raise TimeoutError

    def _listen(self, events: int) -> None:
        desk = self._socket
        if desk is None:
            return
        try:
            answers = self._answers(desk.recv(_CHUNK, socket.MSG_DONTWAIT))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._dismiss()
            return
        for _, pid, status, _, _ in answers:
            self._tell(pid, status)

    def _tell_early(self) -> None:
        """What ended while a start was awaited; whoever started it knows its pid by now."""
        early, self._early = self._early, []
        for pid, status in early:
            self._tell(pid, status)

    def _tell(self, pid: int, status: int) -> None:
        if pid in self._children:
            self._children.discard(pid)
            self._ended(pid, status)

    def _answers(self, data: bytes) -> list[_Answer]:
        if not data:
            raise ConnectionResetError
        self._heard += data
        found: list[_Answer] = []
        while len(self._heard) >= 4:
            size = struct.unpack_from("!I", self._heard)[0]
            if len(self._heard) < 4 + size:
                break
            kind, pid, status, code, message = json.loads(self._heard[4 : 4 + size])
            found.append((kind, pid, status, code, message))
            del self._heard[: 4 + size]
        return found


class _Desk:
    """The helper's own side: one program after the other, and the end of each."""

    def __init__(self, guest: socket.socket, identity: Identity) -> None:
        self._guest = guest
        self._identity = identity
        self._alive = 0
        for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
            if fd > 2 and fd != guest.fileno():
                try:
                    os.close(fd)
                except OSError:
                    pass
        signal.set_wakeup_fd(-1)
        self._wake, woken = socket.socketpair()
        woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(woken.detach(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the guest is gone."""
        ready = select.poll()
        for end in (self._guest, self._wake):
            ready.register(end.fileno(), select.POLLIN)
        while True:
            for fd, _ in ready.poll():
                if fd == self._wake.fileno():
                    self._wake.recv(4096)
                    self._reap()
                elif not self._serve_one():
                    return

    def _serve_one(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._guest, _CHUNK, 3)
        for fd in fds:
            os.set_inheritable(fd, False)  # gVisor does not heed MSG_CMSG_CLOEXEC
        try:
            while data and len(data) < 4 + struct.unpack_from("!I", data)[0]:
                more = self._guest.recv(_CHUNK)
                if not more:
                    return False
                data += more
            if not data or len(fds) != 3:
                return False
            program = Program(*json.loads(data[4:]))
            try:
                pid = start(self._identity, program, (fds[0], fds[1], fds[2]))
            except OperationRefused as no:
                self._say("refused", code=no.code, message=str(no))
            else:
                self._alive += 1
                self._say("started", pid)
            return True
        finally:
            for fd in set(fds):
                os.close(fd)

    def _reap(self) -> None:
        """Tell of an end before it is taken: if this process is killed meanwhile, the guest still finds it."""
        while self._alive:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            exited = found.si_code == os.CLD_EXITED
            self._say("ended", found.si_pid, found.si_status << 8 if exited else found.si_status)
            os.waitpid(found.si_pid, 0)
            self._alive -= 1

    def _say(self, kind: str, pid: int = 0, status: int = 0, code: str = "", message: str = "") -> None:
        self._guest.sendall(_framed((kind, pid, status, code, message)))


def _framed(words: object) -> bytes:
    told = json.dumps(words).encode()
    return struct.pack("!I", len(told)) + told
