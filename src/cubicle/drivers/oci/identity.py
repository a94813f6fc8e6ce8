"""Who a sandbox is to the host's kernel: its own range of ids, and what shows it its files with them."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cubicle.drivers.oci import ext4, mounts
from cubicle.drivers.oci.config import IDS
from cubicle.drivers.oci.disk import Disk, DiskMode
from cubicle.drivers.oci.id_ranges import FIRST_RANGE, IdRanges, first_id, is_own
from cubicle.drivers.oci.namespaces import NamespaceMaker, for_files, for_sandbox

log = logging.getLogger(__name__)

_NAMESPACE, _FILES, _IMAGE = "user", "own", "image"
"""Mount points in a sandbox's stage that only its start needs: its user namespace, its disk and its image."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_TRIAL_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KernelIdentity:
    """One sandbox, as the kernel knows it while it is up."""

    first_id: int
    """The host's id of the sandbox's id 0."""
    namespace: Path | None
    """The user namespace that the runtime enters; None: it makes one, at the cost of the host's root."""
    files: Path
    """The sandbox's disk as it sees it itself."""
    payer: int = 0
    """The host's user who is charged for what is taken in that namespace."""


@dataclass(frozen=True, slots=True)
class KernelIdentities:
    """Gives sandboxes their identity. Blocking; runs in threads."""

    ranges: IdRanges
    maker: NamespaceMaker
    stored: int
    """The first id that files have on disk, in images and on every sandbox's disk."""
    shows: bool = True
    """Whether this host can show files with other ids; if not, all sandboxes have the ids of the files."""
    joins: bool = True
    """Whether the runtime enters a user namespace that it is given; gVisor makes its own."""

    def known(self, stage: Path, disk: Path, first: int) -> KernelIdentity:
        """The identity with which a sandbox was started."""
        own = is_own(first)
        return KernelIdentity(first, stage / _NAMESPACE if self.joins else None, stage / _FILES if own else disk)

    def claim(self, home: Path, stage: Path, disk: Path) -> KernelIdentity:
        """Choose one, for a sandbox that is down."""
        claimed = self.ranges.claim(home)
        first = claimed if self.shows else self.stored
        _make_stage(stage, first)
        return replace(self.known(stage, disk, first), payer=claimed)

    def namespaces(self, who: KernelIdentity) -> AbstractContextManager[Future[list[int]]]:
        """Have the namespaces of a sandbox made, while its disk is mounted."""
        shown = for_files(self.stored, who.first_id)
        own = for_sandbox(who.first_id, who.payer)
        return self.maker.making(
            *([own] if who.namespace is not None else []), *([shown] if is_own(who.first_id) else [])
        )

    def mount_root(self, who: KernelIdentity, made: list[int], base: Path, disk: Path, target: Path) -> None:
        """Mount the root of a sandbox: the image, and over it what it has written. The disk is mounted already."""
        if who.namespace is not None:
            mounts.attach_namespace(made[0], who.namespace)
        if not is_own(who.first_id):
            mounts.overlay(base, disk / "upper", disk / "work", target)
            return
        image = who.files.with_name(_IMAGE)
        for source, place in ((disk, who.files), (base, image)):
            place.mkdir(exist_ok=True)
            mounts.attach_idmapped(source, place, made[-1])
        mounts.overlay(image, who.files / "upper", who.files / "work", target)
        mounts.unmount(image)  # the overlay has its own

    def settle(self, stage: Path) -> None:
        """The sandbox is up: what only its start needed goes, so that the table of mounts stays short."""
        for name in (_NAMESPACE, _FILES, _IMAGE):
            if os.path.lexists(stage / name):
                mounts.unmount(stage / name)

    def release(self, home: Path) -> None:
        """The sandbox is down, and nothing of it is mounted."""
        self.ranges.release(home)

    def tried(self, base: Path, mode: DiskMode, folder: Path, *, joins: bool) -> KernelIdentities:
        """The same, knowing what this host can do; where sandboxes cannot have ids of their own, the log says so."""
        if complaint := self.complaint(base, mode, folder):
            log.warning("all sandboxes share one range of user ids: %s; `cubicle doctor` says more", complaint)
        return replace(self, shows=not complaint, joins=joins)

    def complaint(self, base: Path, mode: DiskMode, folder: Path) -> str:
        """Why a sandbox cannot have ids of its own here; empty if it can."""
        shown = first_id(1)
        try:
            with self.maker.making(for_files(self.stored, shown)) as made, _scratch(folder) as scratch:
                disk = Disk(scratch, scratch / "disk", _TRIAL_BYTES, self.stored)
                disk.make(mode, scratch)
                disk.attach()
                try:
                    return _try_overlay(base, disk.target, scratch, made.result()[0], shown)
                finally:
                    for name in ("rootfs", _IMAGE, _FILES):
                        mounts.unmount(scratch / name)
                    disk.detach()
        except (subprocess.SubprocessError, ext4.Damaged):
            return ""  # no disk could be made, which says nothing about ids
        except OSError as error:
            if error.errno in _FULL:
                return ""  # neither does this, and no sandbox starts until there is space
            return error.strerror or str(error)


def _try_overlay(base: Path, disk: Path, scratch: Path, namespace: int, shown: int) -> str:
    for source, name in ((disk, _FILES), (base, _IMAGE)):
        (scratch / name).mkdir()
        mounts.attach_idmapped(source, scratch / name, namespace)
    target = scratch / "rootfs"
    target.mkdir()
    mounts.overlay(scratch / _IMAGE, scratch / _FILES / "upper", scratch / _FILES / "work", target)
    file = target / "usr" / "trial"
    file.write_bytes(b"")
    os.chown(file, shown + IDS - 1, shown)
    stored = os.stat(disk / "upper/usr/trial")
    right = (stored.st_uid, stored.st_gid) == (FIRST_RANGE + IDS - 1, FIRST_RANGE)
    return "" if right and os.stat(target / "usr").st_uid == shown else "files keep their ids under an overlay"


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=".ids-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _make_stage(stage: Path, first: int) -> None:
    """Root of the sandbox passes through it, and nobody else."""
    stage.mkdir(mode=0o710, exist_ok=True)
    os.chown(stage, 0, first)
    stage.chmod(0o710)
    with suppress(FileNotFoundError):
        (stage / _NAMESPACE).unlink()
