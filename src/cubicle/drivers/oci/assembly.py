"""Puts a sandbox together before its container starts, and takes it apart afterwards. Blocking; runs in threads."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cubicle import record
from cubicle.drivers.common import unix_sockets
from cubicle.drivers.oci import mounts, repair
from cubicle.drivers.oci.config import (
    TCP_BYTES,
    BundleSpec,
    Folders,
    HostFacts,
    bundle_config,
    guest_args,
    guest_mounts,
)
from cubicle.drivers.oci.disk import Disk, DiskMode
from cubicle.drivers.oci.filled_template import FilledTemplates
from cubicle.drivers.oci.guests import GuestFile
from cubicle.drivers.oci.host import CGROUPS, HostPath
from cubicle.drivers.oci.identity import KernelIdentities, KernelIdentity
from cubicle.drivers.oci.process import ProcessId
from cubicle.drivers.oci.records import Meta, OciHome, OciRecords, OciRun
from cubicle.machine.errors import SandboxError, StartFailed
from cubicle.record import BadRecord
from cubicle.sandbox.clock import CLOCK_FILE, kept_reading
from cubicle.sandbox.driver import SandboxLimits
from cubicle.sandbox.free_space import FreeSpace

_LOG_FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_LAST_WORDS = 300


class ImageBase(Protocol):
    """A built image."""

    @property
    def digest(self) -> str: ...
    @property
    def rootfs(self) -> Path: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def has_terminal(self) -> bool: ...


class ImageBases(Protocol):
    """The built images of this machine."""

    def resolve(self, name: str) -> ImageBase:
        """By variant or by digest. Raises an exception whose message says how to build it."""


@dataclass(frozen=True, slots=True)
class AssembledSandbox:
    """What the runtime needs to start a prepared sandbox."""

    bundle: Path
    output: int
    listener: socket.socket | None
    first_id: int

    def close(self) -> None:
        os.close(self.output)
        if self.listener is not None:
            self.listener.close()


@dataclass(frozen=True, slots=True)
class Assembly:
    """How sandboxes are made here."""

    records: OciRecords
    place: HostPath
    bases: ImageBases
    base: ImageBase
    """What a new sandbox is made from."""
    guest: GuestFile
    limits: SandboxLimits
    disk_mode: DiskMode
    facts: HostFacts
    hands_over: bool
    space: FreeSpace
    identities: KernelIdentities
    agents: Path | None = None
    filled: FilledTemplates = field(default_factory=FilledTemplates)

    def prepare(self, home: OciHome, owner: str | None) -> AssembledSandbox:
        """Disk, overlay, socket and bundle of a sandbox that is down."""
        who = self.identities.claim(home.path, self._stage(home), self.disk(home, None).target)
        rootfs = self._stage(home) / "rootfs"
        rootfs.mkdir(exist_ok=True)
        with self.identities.namespaces(who) as made:
            if not home.path.exists():
                self._make(home.name)
            if owner is not None:
                self.records.bind(home, owner)
            meta = repair.known_meta(home, self.today)
            disk, base = self.disk(home, meta), self._base_of(meta)
            disk.attach(self.space.measure().above_floor, lambda: kept_reading(self.records.root / CLOCK_FILE))
            self.identities.mount_root(who, made.result(), base.rootfs, disk.target, rootfs)
        if not self.hands_over:
            _fill_tmp(rootfs, who.first_id)
        self._write_bundle(home, who, base)
        home.save_failure("")
        record.remove(home.socket)
        listener = unix_sockets.listen(home.socket) if self.hands_over else None
        try:
            output = os.open(who.files / "guest.log", _LOG_FLAGS, 0o600)
            return AssembledSandbox(home.bundle, output, listener, who.first_id)
        except OSError:
            if listener is not None:
                listener.close()
            raise

    @property
    def today(self) -> Meta:
        """What a new sandbox is made from."""
        return Meta(self.base.digest, self.limits.disk_bytes)

    def _make(self, name: str) -> None:
        """Make a sandbox that is whole and on disk when it appears among the others."""
        draft = self.records.draft(name)
        disk, templates = self.disk(draft, None), self.records.root / "templates"
        image = self.disk_mode is DiskMode.IMAGE
        filled = self.filled.find(templates, disk.size, disk.first_id) if image else None
        disk.make(self.disk_mode, templates, filled)
        draft.save_meta(self.today)
        self.records.publish(draft)

    def settle(self, home: OciHome, runtime: str, first_id: int) -> OciRun:
        """Write down a sandbox that the runtime has started. Raises StartFailed if it is gone already."""
        try:
            process = ProcessId.of(int(record.read_text(home.pid_file, 64)))
        except (BadRecord, ValueError) as error:
            raise StartFailed(f"The runtime did not say which process it started: {error}.") from None
        if process is None:
            raise StartFailed(f"The sandbox ended as it started: {self.last_words(home)}.")
        self.identities.settle(self._stage(home))
        self._limit_tcp(home)
        run = OciRun(process, runtime, self.guest.digest, first_id)
        home.save_run(run)
        return run

    def _limit_tcp(self, home: OciHome) -> None:
        """Under cgroups of version 1 the memory limit does not count buffers of TCP, and runtimes set no other."""
        group = CGROUPS / "memory" / self.place.cgroup.lstrip("/") / home.name
        with contextlib.suppress(FileNotFoundError):
            (group / "memory.kmem.tcp.limit_in_bytes").write_text(str(TCP_BYTES))

    def is_like_new(self, home: OciHome, meta: Meta, run: OciRun, runtime: str) -> bool:
        """Whether a new sandbox would be the same as this one that runs, by image, guest, limits and isolation."""
        made = (meta, run.guest, run.runtime)
        if made != (self.today, self.guest.digest, runtime):
            return False
        try:
            who = self.identities.known(self._stage(home), self.disk(home, None).target, run.first_id)
            return record.read_text(home.config) == self._config(home, who, self.base)
        except (OSError, BadRecord):
            return False

    def release(self, home: OciHome) -> None:
        """Undo `prepare`, whatever of it was done; the files stay."""
        stage = self._stage(home)
        if stage.exists():  # every mount of it is in there, and its ids are claimed just before
            mounts.unmount(stage / "rootfs")
            self.identities.settle(stage)
            self.disk(home, None).detach()
            self.identities.release(home.path)
            shutil.rmtree(stage / "host", ignore_errors=True)
            mounts.remove_points(stage)
        home.forget_run()

    def remove(self, home: OciHome) -> None:
        """Remove a released sandbox with all its files."""
        self.records.discard_draft(home.name)
        if home.path.exists():
            self.disk(home, None).remove()
            self.records.remove(home)

    def socket(self, home: OciHome) -> Path:
        """Where its guest listens: at the driver's own socket, or at one that it made itself."""
        return home.socket if home.socket.exists() else self._stage(home) / "host" / "guest.sock"

    def disk(self, home: OciHome, meta: Meta | None) -> Disk:
        size = meta.disk_bytes if meta else self.limits.disk_bytes
        return Disk(home.path, self._stage(home) / "disk", size, self.place.first_id)

    def last_words(self, home: OciHome) -> str:
        """Why a sandbox died, as far as can be seen: from its memory counters, or what its guest said last."""
        name = f"{self.place.cgroup.lstrip('/')}/{home.name}"
        for counters in (CGROUPS / name / "memory.events", CGROUPS / "memory" / name / "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                numbers = dict(line.split() for line in counters.read_text().splitlines())
                if int(numbers.get("oom_kill", 0)):
                    return "its first process was killed after it ran out of memory"
        with contextlib.suppress(OSError):
            fd = os.open(self._stage(home) / "disk/guest.log", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(fd, "rb") as log:
                log.seek(max(0, os.fstat(fd).st_size - _LAST_WORDS))
                lines = log.read(_LAST_WORDS).decode(errors="replace").strip().splitlines()
            if lines:
                said = "".join(c for c in lines[-1] if c.isprintable())
                return f"its first process ended; it said: {said}"
        return "its first process was killed"

    def _stage(self, home: OciHome) -> Path:
        return self.place.stage / home.name

    def _folders(self, home: OciHome, who: KernelIdentity) -> Folders:
        socket_dir = None
        if not self.hands_over:
            socket_dir = self._stage(home) / "host"
            socket_dir.mkdir(mode=0o700, exist_ok=True)
            os.chown(socket_dir, who.first_id, who.first_id)
        at, rootfs = who.files, self._stage(home) / "rootfs"
        agents = self.agents if self.agents and self.agents.is_dir() else None
        return Folders(rootfs, at / "uploads", at / "outputs", at / "skills", self.guest.path, socket_dir, agents)

    def _write_bundle(self, home: OciHome, who: KernelIdentity, base: ImageBase) -> None:
        if os.path.lexists(home.bundle) and not home.bundle.is_dir():
            record.keep_bad(home.bundle)
        home.bundle.mkdir(exist_ok=True)
        record.clear_folder(home.config)
        home.config.unlink(missing_ok=True)  # it may be a link
        home.config.write_text(self._config(home, who, base))

    def _config(self, home: OciHome, who: KernelIdentity, base: ImageBase) -> str:
        folders = self._folders(home, who)
        wanted = BundleSpec(
            rootfs=folders.rootfs,
            cgroup=f"{self.place.cgroup}/{home.name}",
            first_id=who.first_id,
            limits=self.limits,
            user_namespace=who.namespace,
            args=guest_args(folders, base.environment),
            mounts=guest_mounts(folders),
        )
        return json.dumps(bundle_config(wanted, self.facts))

    def _base_of(self, meta: Meta) -> ImageBase:
        """The base that a sandbox was made from. If that is gone, today's: its files count more than their ground."""
        if meta.image == self.base.digest:
            return self.base
        try:
            return self.bases.resolve(meta.image)
        except SandboxError:
            return self.base


def _fill_tmp(rootfs: Path, owner: int) -> None:
    """gVisor mounts a file system in memory over an empty /tmp, where no disk limit holds: so it is not empty."""
    tmp = os.open(rootfs / "tmp", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(".X11-unix", 0o755, dir_fd=tmp)
            os.chown(".X11-unix", owner, owner, dir_fd=tmp, follow_symlinks=False)
    finally:
        os.close(tmp)
