"""A DATA_DIR on a file system of its own, from which the power can be taken."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cubicle.drivers.common.instance import instance_of
from cubicle.drivers.oci.driver import RUN_DIR
from tests.conftest import absent
from tests.support import remains

GIB = 1024**3
FORMATS = {
    "ext4": (["mkfs.ext4", "-q", "-F"], "loop"),
    "xfs": (["mkfs.xfs", "-q"], "loop"),
    "xfs-quota": (["mkfs.xfs", "-q"], "loop,pquota"),
}
_SHUTDOWN = 0x8004587D  # XFS_IOC_GOINGDOWN and EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32)
_WITHOUT_LOG_FLUSH = struct.pack("=I", 2)
_SECONDS = 60


class CutDisk:
    """A file system in a file, mounted at DATA_DIR in a mount namespace of its own.

    Other programs of the host copy all mounts that they see into namespaces of theirs, and so would keep it mounted.
    """

    def __init__(self, folder: Path, kind: str, size: int = 2 * GIB, *options: str) -> None:
        self.data = folder / "data"
        self._image = folder / "data.img"
        self._kind = kind.partition("-")[0]
        self._holder: subprocess.Popen[bytes] | None = None
        make, self._options = FORMATS[kind]
        if shutil.which(make[0], path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            absent(f"needs {make[0]}: scripts/packages test")
        self.data.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size)
        subprocess.run([*make, *options, str(self._image)], check=True, timeout=_SECONDS)
        if complaint := self._mount():
            self.clear()
            if "quota" in self._options:
                pytest.skip(f"this kernel has no {self._kind} with quotas")
            absent(f"needs {self._kind} in the kernel: {complaint}")

    @property
    def enter(self) -> list[str]:
        """Begins a command that sees the disk."""
        return ["nsenter", f"--mount={self.mounts}", "--"]

    @property
    def mounts(self) -> str:
        """The file of the mount namespace that has the disk."""
        assert self._holder is not None
        return f"/proc/{self._holder.pid}/ns/mnt"

    @property
    def seen(self) -> Path:
        """DATA_DIR as this process can look into it."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{self.data}")

    def _mount(self) -> str:
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep infinity"]
        self._holder = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        with self._holder.stdout as ready:
            assert ready.readline() == b"\n"
        command = ["mount", "-t", self._kind, "-o", self._options, str(self._image), str(self.data)]
        return subprocess.run([*self.enter, *command], capture_output=True, timeout=_SECONDS).stderr.decode()[:200]

    def take_power(self) -> None:
        """From this moment on nothing more reaches the disk, the journal neither."""
        fd = os.open(self.seen, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, _WITHOUT_LOG_FLUSH)
        finally:
            os.close(fd)

    def clear(self) -> None:
        """As a boot finds the host: no process, mount, cgroup or runtime state of the sandboxes. The service has ended."""
        instance = instance_of(self.data)
        _until(lambda: (remains.end_processes(f"/cubicle/{instance}"), remains.processes(f"/cubicle/{instance}"))[1])
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait(_SECONDS)
            self._holder = None
        _until(lambda: remains.loop_devices(self._image.parent))
        shutil.rmtree(RUN_DIR / instance, ignore_errors=True)
        _until(lambda: (_remove_cgroups(instance), remains.cgroups(f"cubicle/{instance}"))[1])

    def restore(self) -> None:
        """The power is back: the journal is replayed."""
        self.clear()
        complaint = self._mount()
        assert not complaint, complaint


@contextmanager
def cut_disk(folder: Path, kind: str, size: int = 2 * GIB, *options: str) -> Iterator[CutDisk]:
    """Such a disk; nothing of it is left at the end. Who uses it has ended the service."""
    disk = CutDisk(folder, kind, size, *options)
    try:
        yield disk
    finally:
        disk.clear()


def _until(left: object) -> None:
    """Wait until there is nothing left."""
    assert callable(left)
    deadline = time.monotonic() + _SECONDS
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def _remove_cgroups(instance: str) -> None:
    for cgroup in sorted(remains.cgroups(f"cubicle/{instance}"), key=len, reverse=True):
        with suppress(OSError):
            os.rmdir(cgroup)
