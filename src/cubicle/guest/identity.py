"""Who the guest acts as: root of the sandbox, or the user that commands run as."""

from __future__ import annotations

import os


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
        else:
            os.seteuid(0)
            os.setegid(0)
