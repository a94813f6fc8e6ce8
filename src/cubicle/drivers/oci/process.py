"""Processes that are not our children: known by id and start time, ended by pidfd, waited for without polling."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of one boot of this machine; an id that was given out again is another process."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The live process with this id."""
        started = _started(pid)
        return None if started is None else cls(pid, started, boot_id())

    @property
    def this_boot(self) -> bool:
        return self.boot == boot_id()

    @property
    def alive(self) -> bool:
        return self.this_boot and _started(self.pid) == self.started

    async def kill(self, seconds: float) -> bool:
        """End it, and wait until it is gone; False when it is still there after so many seconds."""
        fd = await asyncio.to_thread(self._send_kill)
        if fd is None:
            return True
        try:
            return await ended(fd, seconds)
        finally:
            os.close(fd)

    def resume(self) -> bool:
        """Let it run on if a signal has stopped it; whether that was so."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # Looked at after the pidfd is open: it can no longer become another process.
            if not self.alive or _stat(self.pid)[0] not in (b"T", b"t"):
                return False
            signal.pidfd_send_signal(fd, signal.SIGCONT)
        except (ProcessLookupError, OSError):
            return False
        finally:
            os.close(fd)
        return True

    def network(self) -> int | None:
        """An open descriptor of its network namespace, if that is not the host's own; whoever asked closes it."""
        with contextlib.suppress(OSError):
            namespace = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            # Looked at once it is open: the process may have ended, and its number be another's.
            if self.alive and not os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/net")):
                return namespace
            os.close(namespace)
        return None

    def _send_kill(self) -> int | None:
        """A pidfd of the process, which has the signal; None if it is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        try:
            # Looked at after the pidfd is open: it can no longer become another process.
            if self.alive:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                return fd
        except ProcessLookupError:
            pass
        os.close(fd)
        return None


async def ended(pidfd: int, seconds: float) -> bool:
    """Wait for the end of the process behind a pidfd; False when it takes longer than so many seconds."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with the end.
        async with asyncio.timeout(seconds):
            await over.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    return True


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started(pid: int) -> int | None:
    """When the process started, in ticks since the boot; None if there is none, or only its body (a zombie)."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _stat(pid: int) -> list[bytes]:
    """State, parent and so on: what comes after the name, which may hold anything."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return stat[stat.rindex(b")") + 2 :].split()
