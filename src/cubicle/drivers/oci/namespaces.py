"""User namespaces for sandboxes: who is who inside, whose account the kernel charges, and how ids of files are shown.

The kernel counts what a user takes (inotify, pending signals, timers, message queues, keys…) by user id, and what is
taken inside a user namespace also on the account of the user who made that namespace. So each sandbox has ids of its
own, and a namespace that was made by its own root user, not by root of the host.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cubicle.drivers.common.container import RLIMITS
from cubicle.drivers.oci import namespace_maker
from cubicle.drivers.oci.config import IDS

_FEW = 4
"""The runtime makes one namespace of each kind for a sandbox; the sandbox itself makes none."""
_SYSCTLS = {
    "max_inotify_instances": 128,
    "max_inotify_watches": 65_536,
    "max_fanotify_groups": 0,
    "max_fanotify_marks": 0,
    "max_user_namespaces": 0,
    **{f"max_{kind}_namespaces": _FEW for kind in ("cgroup", "ipc", "mnt", "net", "pid", "time", "uts")},
}
_SECONDS = 20.0
_ENDED = (errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT)

_MAX_CONCURRENT = 2


@dataclass(frozen=True, slots=True)
class NamespaceSpec:
    """One user namespace."""

    map: tuple[tuple[int, int, int], ...]
    """First id inside, first id of the host, number of ids."""
    owner: int = 0
    """The host's user who makes it, and is charged for what is taken in it."""
    sysctls: Mapping[str, int] = field(default_factory=dict)
    rlimits: Mapping[str, int] = field(default_factory=dict)


def for_sandbox(first_id: int, owner: int) -> NamespaceSpec:
    """The one that a sandbox runs in: its ids begin at `first_id` of the host, `owner` is charged for it."""
    return NamespaceSpec(((0, first_id, IDS),), owner, _SYSCTLS, RLIMITS)


def for_files(stored: int, shown: int) -> NamespaceSpec:
    """One that no process enters: a mount with it shows the ids from `stored` on as those from `shown` on. Root of the
    host stays itself, for what the driver and overlayfs write."""
    return NamespaceSpec(((0, 0, 1), (stored, shown, IDS)))


@dataclass(slots=True)
class NamespaceMaker:
    """The program that makes namespaces, while it is needed. Blocking; runs in threads."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: ThreadPoolExecutor | None = None
    _process: subprocess.Popen[bytes] | None = None
    _channel: socket.socket | None = None

    def make(self, *wanted: NamespaceSpec) -> list[int]:
        """Descriptors of such namespaces. Raises OSError."""
        if not wanted:
            return []
        asked = json.dumps([asdict(one) for one in wanted]).encode()
        with self._lock:
            try:
                return self._ask(asked)
            except OSError as error:
                if error.errno not in _ENDED and not isinstance(error, TimeoutError):
                    raise
            self._end()  # it was killed: another one
            return self._ask(asked)

    @contextlib.contextmanager
    def making(self, *wanted: NamespaceSpec) -> Iterator[Future[list[int]]]:
        """The same while something else is done; the descriptors are closed when the block ends."""
        with self._lock:
            self._threads = self._threads or ThreadPoolExecutor(4, "namespaces")
            made = self._threads.submit(self.make, *wanted)
        try:
            yield made
        finally:
            with contextlib.suppress(OSError):
                for descriptor in made.result():
                    os.close(descriptor)

    def close(self) -> None:
        """End the program; the next request starts another."""
        if (threads := self._threads) is not None:
            threads.shutdown()
        with self._lock:
            self._threads = None
            self._end()

    def _ask(self, asked: bytes) -> list[int]:
        channel = self._channel or self._begin()
        space = socket.CMSG_SPACE(array.array("i").itemsize * _MAX_CONCURRENT)
        try:
            channel.send(asked, socket.MSG_NOSIGNAL)
            answer, rights, _, _ = channel.recvmsg(namespace_maker.MAX_PACKET, space, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            self._end()  # its answer may still come, and would be taken for that of the next request
            raise
        descriptors = array.array("i")
        for level, kind, content in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content)
        if descriptors:
            return list(descriptors)
        if not answer:
            raise ConnectionResetError(errno.ECONNRESET, "the maker of user namespaces has ended")
        told = json.loads(answer)
        raise OSError(told["errno"], told["error"])

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # In a session of its own: a Ctrl-C in a terminal is for the service.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(namespace_maker.__file__).resolve())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        ours.settimeout(_SECONDS)
        self._channel = ours
        return ours

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            self._process.wait()
        self._channel = self._process = None
