"""Sandboxes without isolation, for tests and for a first look: the true guest in a mount and pid namespace of its own.

It sees the host's own root file system, with folders of its own over /home, /mnt, /run and /tmp. No image, no limits.
"""

from __future__ import annotations

import asyncio
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cubicle import durable
from cubicle.drivers.common.completion import in_thread
from cubicle.drivers.common.disk_usage import used_bytes
from cubicle.drivers.common.instance import SharedLock
from cubicle.drivers.common.one_host import OneHost
from cubicle.guest import bundle, operations, wire
from cubicle.guest.guest_config import GuestConfig
from cubicle.machine.errors import CannotRescue, NotRunning, OwnerHasSandbox, StartFailed, Unusable
from cubicle.machine.upload_folder import UploadFolder
from cubicle.sandbox.driver import Capabilities, DriverHost, SandboxSeen, State
from cubicle.sandbox.lost_found import Lost
from cubicle.sandbox.trash import Discarded, TrashNote

_START_LIMIT = 30.0
_STOP_LIMIT = 10.0
_ENVIRONMENT = {
    "PATH": "/home/assistant/.local/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/home/assistant",
    "USER": "assistant",
    "LANG": "C.UTF-8",
    "TERM": "xterm-256color",
}
# One `mount` for all: a program a folder would take longer than the guest does.
_MOUNTS = """\
home.{name} /home tmpfs defaults
{place}/home /home/assistant none bind,X-mount.mkdir
mnt.{name} /mnt tmpfs defaults
run.{name} /run tmpfs mode=0755
{place}/guest /run/cubicle none bind,X-mount.mkdir
{place}/outputs /mnt/user-data/outputs none bind,X-mount.mkdir
{place}/uploads /mnt/user-data/uploads none bind,ro,X-mount.mkdir
{place}/skills /mnt/skills none bind,ro,X-mount.mkdir
{place}/uploads /run/cubicle/uploads none bind
{place}/skills /run/cubicle/skills none bind
{place}/tmp /tmp none bind
"""
_SCRIPT = """
set -e
place=$1 python=$2 config=$3 loopback=$4
mount --all --fstab "$place/mounts"
[ -z "$loopback" ] || "$python" -I -S -c "$loopback"
exec "$python" -I -S /run/cubicle/guest.pyz "$config"
"""
# A new network namespace has a loopback that is down: SIOCSIFFLAGS with IFF_UP.
_LOOPBACK_UP = (
    "import fcntl,socket; fcntl.ioctl(socket.socket(), 0x8914, b'lo'.ljust(16, b'\\0') + b'\\1'.ljust(24, b'\\0'))"
)


class MemoryDriver(OneHost):
    """The driver contract over plain host processes. With `own_network`, ports of one sandbox are not another's."""

    def __init__(self, folder: Path, *, own_network: bool = False) -> None:
        self._own_network = own_network
        self._folder = folder / "memory"
        self._owners = folder / "memory-owners"
        self._trash = folder / "memory-trash"
        self._root = os.geteuid() == 0
        self._uploads: dict[str, UploadFolder] = {}
        self._binding = threading.Lock()
        self._lock = SharedLock(folder / "memory.lock")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(isolates=False, fd_passing=True, upload_folder=True, network_namespace=True, resumes=True)

    async def host(self) -> DriverHost:
        return DriverHost(platform.release())

    async def open(self) -> None:
        if not shutil.which("unshare"):
            raise Unusable("The memory driver needs the unshare command (Debian: apt-get install util-linux).")
        await in_thread(self._open)

    def _open(self) -> None:
        for folder in (self._folder, self._owners, self._trash):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock.join()
        if self._lock.is_alone():  # what another driver makes at this moment is its own
            for half_made in self._folder.glob("*.new"):
                shutil.rmtree(half_made)
            self._end_unrecorded()
            self._lock.join()

    def _end_unrecorded(self) -> None:
        """Of a driver that was killed when it had started a sandbox, and had not written down which process that is."""
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text(errors="surrogateescape").split("\0")
            except OSError:
                continue
            places = [Path(word) for word in words if Path(word).parent == self._folder]
            if words[0] == "unshare" and places and self._pid(places[0]) != pid:
                _end(pid)

    async def close(self) -> None:
        self._lock.close()

    async def start(self, name: str, owner: str | None) -> None:
        place = self._folder / name
        if await in_thread(self._prepare, place, owner):
            try:
                async with asyncio.timeout(_START_LIMIT):
                    await self._answering(name)
            except (TimeoutError, NotRunning, OSError):
                reason = await asyncio.to_thread((place / "log").read_text, errors="replace")
                await self.stop(name)
                raise StartFailed(f"The guest did not come up: {reason.strip()[-500:] or 'it said nothing'}") from None

    def _prepare(self, place: Path, owner: str | None) -> bool:
        """Everything up to the launch; whether there was one."""
        if (self._trash / place.name).exists():
            raise StartFailed("This sandbox is in the trash.")
        if not place.exists():
            self._make(place)
        if owner is not None:
            with self._binding:
                self._bind(place.name, owner)
        if self._pid(place) is not None:
            return False
        self._launch(place)
        return True

    def _make(self, place: Path) -> None:
        fresh = place.with_suffix(".new")
        for area, mode in (("home", 0o755), ("outputs", 0o755), ("uploads", 0o755), ("skills", 0o755), ("tmp", 0o1777)):
            (fresh / area).mkdir(parents=True)
            (fresh / area).chmod(mode)
        for private in ("guest", "guest/uploads", "guest/skills"):
            (fresh / private).mkdir(mode=0o700)
        if self._root:
            for area in ("home", "outputs"):
                os.chown(fresh / area, 1000, 1000)
        fresh.rename(place)

    def _bind(self, name: str, owner: str) -> None:
        link = self._owners / owner
        if link.is_symlink() and os.readlink(link) != name:
            if (self._folder / os.readlink(link)).exists():
                raise OwnerHasSandbox(os.readlink(link))
            link.unlink()  # of one that was removed
        if not link.is_symlink():
            os.symlink(name, link)

    def _launch(self, place: Path) -> None:
        path = place / "guest.sock"
        path.unlink(missing_ok=True)
        (place / "guest" / "guest.pyz").write_bytes(_guest())
        folder = str(place).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
        (place / "mounts").write_text(_MOUNTS.format(place=folder, name=place.name))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            with _short(path) as address:
                server.bind(address)
            server.listen(64)
            config = GuestConfig(
                listen_fd=server.fileno(),
                env=_ENVIRONMENT,
                uid=1000 if self._root else 0,
                gid=1000 if self._root else 0,
                aliases={"/mnt/user-data/uploads": "/run/cubicle/uploads", "/mnt/skills": "/run/cubicle/skills"},
            )
            pid = self._spawn(place, server.fileno(), config.encode().decode())
        (place / "pid").write_text(f"{pid} {_born(pid)}")

    def _spawn(self, place: Path, fd: int, config: str) -> int:
        more = [] if self._root else ["--user", "--map-root-user"]
        more += ["--net"] if self._own_network else []
        with (place / "log").open("wb") as output:
            child = subprocess.Popen(
                [
                    *("unshare", *more, "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"),
                    *("/bin/sh", "-c", _SCRIPT, "sh", str(place), _python(), config),
                    _LOOPBACK_UP if self._own_network else "",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[fd],
                start_new_session=True,
                cwd="/",
                env=_ENVIRONMENT,
            )
        child.returncode = 0  # it outlives this object, and whoever stops it reaps it
        return child.pid

    async def _answering(self, name: str) -> None:
        """The socket listens from the start; this waits for the first byte that the guest itself sends."""
        loop = asyncio.get_running_loop()
        with await self.connect(name) as sock:
            await loop.sock_sendall(sock, wire.frame(1, wire.OPEN, operations.Ping().encode()))
            if not await loop.sock_recv(sock, 1):
                raise NotRunning("The guest hung up.")

    async def stop(self, name: str) -> None:
        await in_thread(self._stop, name)

    def _stop(self, name: str) -> None:
        if folder := self._uploads.pop(name, None):
            folder.end()
        place = self._folder / name
        pid = self._pid(place)
        if pid is not None:
            _end(pid)
        (place / "pid").unlink(missing_ok=True)

    async def delete(self, name: str) -> None:
        await in_thread(self._delete, name)

    def _delete(self, name: str) -> None:
        place = self._folder / name
        if place.exists():
            self._stop(name)
            for link, owned in self._owned().items():
                if owned == name:
                    link.unlink()
            shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(self._trash / name, ignore_errors=True)

    async def purge(self, name: str) -> bool:
        return await in_thread(self._purge, name)

    def _purge(self, name: str) -> bool:
        going = self._folder / f"{name}.new"
        try:
            (self._trash / name).rename(going)
        except FileNotFoundError:
            return False
        shutil.rmtree(going, ignore_errors=True)
        return True

    async def discard(self, name: str, note: TrashNote) -> None:
        await in_thread(self._discard, name, note)

    def _discard(self, name: str, note: TrashNote) -> None:
        place = self._folder / name
        if not place.exists():
            return
        self._stop(name)
        links = [link for link, owned in self._owned().items() if owned == name]
        if links:
            (place / "owner").write_text(links[0].name)
        measured = replace(note, size=used_bytes(place, sys.maxsize))
        durable.write(place / "discarded.json", measured.to_json())
        with self._binding:
            durable.move(place, self._trash / name)
            for link in links:
                if link.is_symlink() and os.readlink(link) == name:
                    link.unlink()

    async def discarded(self) -> Sequence[Discarded]:
        return await asyncio.to_thread(lambda: [self._see_discarded(place) for place in self._trash.iterdir()])

    def _see_discarded(self, place: Path) -> Discarded:
        note = owner = None
        with suppress(OSError):
            note = TrashNote.parse((place / "discarded.json").read_bytes())
        with suppress(OSError):
            owner = (place / "owner").read_text()
        return Discarded(place.name, owner, note, "host")

    async def restore(self, name: str, owner: str) -> None:
        await in_thread(self._restore, name, owner)

    def _restore(self, name: str, owner: str) -> None:
        if not (self._trash / name).exists():
            raise NotRunning("There is no such sandbox in the trash.")
        with self._binding:
            self._bind(name, owner)
            durable.move(self._trash / name, self._folder / name)
        (self._folder / name / "discarded.json").unlink(missing_ok=True)

    async def find(self, owner: str, hint: str = "") -> str | None:
        with suppress(OSError):
            name = os.readlink(self._owners / owner)
            if (self._folder / name).exists():
                return name
        return None

    async def resume(self, name: str) -> bool:
        return await asyncio.to_thread(self._resume, name)

    def _resume(self, name: str) -> bool:
        pid = self._pid(self._folder / name)
        stopped = [guest for guest in _children(pid) if _stat(guest)[:1] in (["T"], ["t"])] if pid is not None else []
        for guest in stopped:
            with suppress(ProcessLookupError):
                os.kill(guest, signal.SIGCONT)
        return bool(stopped)

    async def list(self) -> Sequence[SandboxSeen]:
        return await asyncio.to_thread(self._list)

    def _list(self) -> Sequence[SandboxSeen]:
        owners = {owned: link.name for link, owned in self._owned().items()}
        return [
            SandboxSeen(
                place.name,
                owners.get(place.name),
                State.RUNNING if self._pid(place) is not None else State.STOPPED,
                image="host",
            )
            for place in self._folder.iterdir()
            if place.suffix != ".new"
        ]

    def _owned(self) -> dict[Path, str]:
        """Which sandbox each owner has; others may be removed meanwhile."""
        found = {}
        for link in self._owners.iterdir():
            with suppress(FileNotFoundError):
                found[link] = os.readlink(link)
        return found

    async def rescue(self, lost: Lost, owner: str) -> str:
        raise CannotRescue("The memory driver sets no sandbox aside; look at this one in its folder.")

    def uploads(self, name: str) -> UploadFolder | None:
        return self._uploads.setdefault(name, UploadFolder(self._folder / name / "uploads", os.geteuid()))

    async def network(self, name: str) -> int | None:
        """The sandbox's, or the host's own."""
        pid = await in_thread(self._pid, self._folder / name)
        return None if pid is None else os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    async def flush(self, name: str) -> None:
        """Its files are files of the host: where that has no space, the write itself is refused."""

    async def connect(self, name: str) -> socket.socket:
        place = self._folder / name
        if await asyncio.to_thread(self._pid, place) is None:
            raise NotRunning("The sandbox is not running.")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            with _short(place / "guest.sock") as address:
                await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError as error:
            sock.close()
            raise NotRunning(f"The guest does not answer: {error.strerror}") from None
        return sock

    def _pid(self, place: Path) -> int | None:
        """The process that holds the sandbox, if it is still the one that we started."""
        try:
            pid, born = map(int, (place / "pid").read_text().split())
        except (OSError, ValueError):
            return None
        return pid if _born(pid) == born else None


class _short:
    """A unix socket address for a path of any length."""

    def __init__(self, path: Path) -> None:
        self._folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        self._name = path.name

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._folder}/{self._name}"

    def __exit__(self, *exception: object) -> None:
        os.close(self._folder)


def _end(pid: int) -> None:
    """Kill the guest, wait for the end of what holds it, and reap that; it may be over at any moment by itself."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            for one in _children(pid) or [pid]:
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            ended.poll(_STOP_LIMIT * 1000)
        finally:
            os.close(handle)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _children(pid: int) -> list[int]:
    """The guest itself: when it dies, the kernel ends all of its namespace before `unshare` ends."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _born(pid: int) -> int:
    """When the process started, so that a reused number is not taken for it; 0 if it is gone or a zombie."""
    fields = _stat(pid)
    return 0 if not fields or fields[0] in "ZX" else int(fields[19])


def _stat(pid: int) -> list[str]:
    """State, parent and so on; nothing if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _python() -> str:
    system = Path("/usr/bin/python3")
    return str(system if system.exists() else Path(sys.executable).resolve())


_built: bytes = b""


def _guest() -> bytes:
    global _built
    if not _built:
        _built = bundle.build([_python()])
    return _built
