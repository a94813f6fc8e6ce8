"""Who the guest acts as: root of the sandbox, or the user that commands run as."""

from __future__ import annotations

import os
import signal

_BY_KILL = 0


class Identity:
    """Switches the whole (single-threaded) guest between root and the user, and back."""

    def __init__(self, uid: int, gid: int) -> None:
        self.uid = uid
        self.gid = gid
        self.switches = os.getuid() == 0 and uid != 0

    def user(self) -> As:
        """Touch files as the user: what commands cannot reach, the guest does not reach for them either."""
        return As(self.uid, self.gid, False) if self.switches else As(-1, -1, False)

    def spawner(self) -> As:
        """Start a program as the user.

        The saved ids stay root's until exec, which copies the effective ones over them and clears every capability.
        So the guest can come back, the program cannot, and the fast vfork path of the standard library applies.
        """
        return As(self.uid, self.gid, True) if self.switches else As(-1, -1, True)

    def root(self) -> As:
        return As(-1, -1, False)


class As:
    """A block of code under other ids."""

    __slots__ = ("gid", "real", "uid")

    def __init__(self, uid: int, gid: int, real: bool) -> None:
        self.uid = uid
        self.gid = gid
        self.real = real

    def __enter__(self) -> None:
        if self.uid < 0:
            return
        if self.real:
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
            os.setresgid(self.gid, self.gid, 0)
            os.setresuid(self.uid, self.uid, 0)
        else:
            os.setegid(self.gid)
            os.seteuid(self.uid)

    def __exit__(self, *exception: object) -> None:
        if self.uid < 0:
            return
        if self.real:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
            _let_stop()
        else:
            os.seteuid(0)
            os.setegid(0)


def _let_stop() -> None:
    """Heed SIGTERM again. One that came meanwhile counts only from outside the sandbox, which is process 0 to those
    inside: a command may send signals to whoever has its ids. The kernel lets nobody forge one of kill()."""
    told = signal.sigtimedwait((signal.SIGTERM,), 0)
    if told is not None and told.si_pid == 0 and told.si_code == _BY_KILL:
        os.kill(os.getpid(), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
