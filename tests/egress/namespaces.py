"""Two network namespaces and a cable between them: a service here, a world of servers there."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_IP = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") or "ip"


def enter(handle: int) -> None:
    """Move the calling thread, and the threads that it starts, into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Namespace:
    """A network namespace, kept by a process that does nothing else."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo up; exec sleep 3000"], stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n"
        self.pid = self._holder.pid
        self.handle = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
        self.ip("link set lo up")

    def ip(self, *lines: str) -> None:
        """Commands of `ip`, by one program."""
        command = ["nsenter", "-t", str(self.pid), "-n", _IP, "-batch", "-"]
        subprocess.run(command, input="\n".join(lines).encode(), check=True, timeout=60)

    def settle(self) -> None:
        """Wait until no address is tentative: without one of its link, a host cannot ask who its neighbours are."""
        deadline = time.monotonic() + 60
        command = ["nsenter", "-t", str(self.pid), "-n", _IP, "-6", "addr", "show", "tentative"]
        while subprocess.run(command, capture_output=True, check=True, timeout=60).stdout:
            assert time.monotonic() < deadline, "an address is still tentative"
            time.sleep(0.05)

    def within(self, work: Callable[[], T]) -> T:
        """Do something there, in a thread of its own."""
        result: list[T] = []

        def run() -> None:
            enter(self.handle)
            result.append(work())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return result[0]

    def close(self) -> None:
        os.close(self.handle)
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


@contextmanager
def cable(addresses: list[str]) -> Iterator[tuple[Namespace, Namespace]]:
    """(here, there): all the addresses are there, and every way from here leads there."""
    here, there = Namespace(), Namespace()
    try:
        here.ip(f"link add out type veth peer name in netns {there.pid}")
        for side, name, number in ((here, "out", 1), (there, "in", 2)):
            side.ip(
                f"addr add 11.0.0.{number}/24 dev {name}",
                f"addr add 2600::{number}/64 dev {name} nodad",
                f"link set {name} up",
            )
        there.ip(*(f"addr add {a}/128 dev lo nodad" if ":" in a else f"addr add {a}/32 dev lo" for a in addresses))
        here.ip("route add default via 11.0.0.2", "route add default via 2600::2")
        here.settle()
        there.settle()
        yield here, there
    finally:
        here.close()
        there.close()
