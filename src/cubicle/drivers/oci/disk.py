"""The disk of a sandbox: one folder that holds all it can write, and the limit on it.

Three ways, the first that works on the file system of DATA_DIR:
    quota     a project quota: no cost, no second file system
    image     a sparse ext4 image on a loop device: costs a mount, limits exactly, and gives freed space back
    watchdog  a plain folder, measured now and then; a sandbox that is over is stopped
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cubicle import durable, record
from cubicle.drivers.oci import ext4, loops, mounts, quota
from cubicle.machine.errors import NoSpace
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

# The inode tables need no zeroing: the image is sparse, so they read as zeros already.
_EXT4_OPTIONS = "noinit_itable,discard,errors=remount-ro"
NEW_SKILLS = ".skills"
_BIND = 4096
_CHUNK = 8 * 1024 * 1024
_MKFS_SECONDS = 60
_CLONE = 0x40049409  # FICLONE
_BUSY_SECONDS = 15.0
_COPY_SECONDS = 7 * 86400.0
_UNREPAIRED, _BEFORE_REPAIR = "disk.unrepaired.img", "disk.before-repair.img"
_FAULTS = (errno.EUCLEAN, errno.EBADMSG, errno.EIO, errno.EINVAL, errno.EROFS, errno.ENODATA)
"""How a mount of a damaged file system fails."""
_TRIAL_BYTES, _TRIAL_INODES = 16 * 1024 * 1024, 16
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskMode(StrEnum):
    QUOTA = "quota"
    IMAGE = "image"
    WATCHDOG = "watchdog"


@dataclass(frozen=True, slots=True)
class Disk:
    """The limited folders of one sandbox: kept in `home`, seen at `target` while it is up."""

    home: Path
    target: Path
    size: int
    first_id: int

    @property
    def image(self) -> Path:
        return self.home / "disk.img"

    @property
    def tree(self) -> Path:
        return self.home / "tree"

    @property
    def unrepaired(self) -> Path:
        """The image as it was found damaged, until a repair succeeds."""
        return self.home / _UNREPAIRED

    @property
    def before_repair(self) -> Path:
        """The image as it was before its last repair; kept for some days."""
        return self.home / _BEFORE_REPAIR

    def make(self, mode: DiskMode, templates: Path, filled: Path | None = None) -> None:
        """Make an empty one, or a copy of one that is `filled`."""
        if mode is DiskMode.IMAGE:
            copy_sparse(filled or template(templates, self.size), self.image, share=False)
            durable.sync_file(self.image)
            return
        self.tree.mkdir(mode=0o710)
        if mode is DiskMode.QUOTA:
            quota.limit(self.tree, self.size, str(self.tree))

    def attach(self, room: int = 0, now: Callable[[], float | None] = lambda: None) -> None:
        """Mount it at the target, with its layout. A damaged one is repaired; a copy of it may take `room` bytes.

        The copy is kept for some days by the service clock, which `now` reads. The date does not count: disks are
        damaged by power cuts, and after those machines come up with a wrong one."""
        self.target.mkdir(parents=True, exist_ok=True)
        if self.image.exists():
            self._attach_image(room, now)
        else:
            mounts.mount(str(self.tree), self.target, "none", _BIND)
        try:
            if not (self.target / "skills").exists():
                self._lay_out()
        except OSError:
            self.detach()
            raise

    def detach(self) -> None:
        mounts.unmount(self.target)

    def remove(self) -> None:
        """Remove all of it. Nothing of the sandbox runs any more."""
        if self.tree.exists():
            remove_tree(self.tree)
        for image in (self.image, self.unrepaired, self.before_repair):
            image.unlink(missing_ok=True)

    def _attach_image(self, room: int, now: Callable[[], float | None]) -> None:
        found = ext4.superblock(self.image)
        if found is None or found.errors:
            self._repair(room)
        try:
            self._mount_image()
        except OSError as error:
            if error.errno not in _FAULTS:
                raise
            self._repair(room)
            self._mount_image()
        found = ext4.superblock(self.image)
        if found is None or found.errors:  # the journal told of a fault that the superblock did not know of
            mounts.unmount(self.target)
            self._repair(room)
            self._mount_image()
        elif self.before_repair.exists():
            self._forget_copy(now())

    @property
    def _copy_note(self) -> Path:
        """When the copy from before the last repair was seen first, by the service clock."""
        return self.home / "disk.before-repair.json"

    def _forget_copy(self, now: float | None) -> None:
        """Remove the copy from before the last repair after its time; late where that is not known, and never early."""
        try:
            since = record.read(self._copy_note).number("reading")
        except (FileNotFoundError, BadRecord):
            since = math.inf
        if now is None:
            return
        if since > now:
            with contextlib.suppress(OSError):
                record.write(self._copy_note, {"reading": now})
        elif now - since > _COPY_SECONDS:
            self.before_repair.unlink()
            record.remove(self._copy_note)

    def _mount_image(self) -> None:
        if found := ext4.superblock(self.image):
            ext4.back_journal(self.image, found.journal)
        with self._device() as device:
            mounts.mount(str(device), self.target, "ext4", mounts.NOSUID | mounts.NODEV, _EXT4_OPTIONS)

    @contextlib.contextmanager
    def _device(self) -> Iterator[Path]:
        """The loop device over the image; a mount made meanwhile keeps it."""
        with loops.attached(self.image, self.home / "loop") as number:
            yield loops.node(number)

    def _repair(self, room: int) -> None:
        """Repair the file system; without space for a copy only where nothing can be lost. Raises ext4.Damaged."""
        began = time.monotonic()
        with self._device() as device:
            _wait_unused(device)
            copied = self._copy_damaged(room)
            log.warning(
                "the disk of sandbox %s is damaged: repairing it",
                self.home.name,
                extra={"copy": str(self.before_repair) if copied else "no space for one"},
            )
            if copied:
                ext4.repair(device)
            else:
                with contextlib.suppress(OSError):  # the kernel brings the journal into it, if it can
                    mounts.mount(str(device), self.target, "ext4", mounts.NOSUID | mounts.NODEV, _EXT4_OPTIONS)
                mounts.unmount(self.target)
                _wait_unused(device)
                ext4.clear_errors(device)
        if copied:
            os.utime(self.unrepaired)
            record.remove(self._copy_note)  # of the copy before this one
            durable.move(self.unrepaired, self.before_repair)
        seconds = round(time.monotonic() - began, 1)
        log.warning("the disk of sandbox %s is repaired", self.home.name, extra={"seconds": seconds})

    def _copy_damaged(self, room: int) -> bool:
        """Keep the image as it is now, if there is space; one that no repair succeeded on yet is kept instead."""
        if self.unrepaired.exists():
            return True
        draft = self.home / "disk.copying"
        draft.unlink(missing_ok=True)
        try:
            if not _clone(self.image, draft):
                if self.image.stat().st_blocks * 512 > room:
                    return False
                copy_sparse(self.image, draft)
            durable.sync_file(draft)  # before the repair changes anything
            durable.move(draft, self.unrepaired)
        except OSError as error:
            draft.unlink(missing_ok=True)
            if error.errno not in _FULL:
                raise
            return False
        return True

    def _lay_out(self) -> None:
        root = self.first_id
        os.chown(self.target, 0, root)
        self.target.chmod(0o710)
        for name, owner, mode in (
            ("upper", root, 0o755),
            ("work", 0, 0o700),
            ("uploads", root, 0o755),
            ("outputs", root + 1000, 0o755),
            (NEW_SKILLS, root, 0o755),
        ):
            folder = self.target / name
            folder.mkdir(mode=mode, exist_ok=True)
            os.chown(folder, owner, owner)
        os.rename(self.target / NEW_SKILLS, self.target / "skills")  # the last one says that all are there


def probe(folder: Path) -> DiskMode:
    """The best way to limit disks in this folder. Makes and removes a small file or two; NoSpace if it cannot."""
    try:
        if quota.works(folder):
            return DiskMode.QUOTA
        with tempfile.TemporaryDirectory(dir=folder) as trial:
            disk = Disk(Path(trial), Path(trial, "mounted"), 16 * 1024 * 1024, 0)
            disk.make(DiskMode.IMAGE, Path(trial))
            disk.attach()
            disk.detach()
            return DiskMode.IMAGE
    except (OSError, subprocess.SubprocessError, ext4.Damaged):
        if _is_full(folder):
            raise NoSpace("The disk of DATA_DIR is full.") from None
    return DiskMode.WATCHDOG


def template(
    folder: Path, size: int, name: str = "", content: Callable[[], tempfile.TemporaryDirectory[str]] | None = None
) -> Path:
    """A formatted image of this size, made once: copying its few blocks is faster than formatting again. One with
    `content`, which is asked for a folder, has another name."""
    path = folder / (name or f"ext4-{size}.img")
    if os.path.lexists(path):
        if _is_ext4(path, size):
            return path
        record.keep_bad(path)
    record.make_folder(folder)
    with (
        tempfile.NamedTemporaryFile(dir=folder, prefix=".ext4-") as fresh,
        content() if content else contextlib.nullcontext() as filling,
    ):
        fresh.truncate(size)
        options = "-q -F -m 0 -b 4096 -J size=4 -O ^resize_inode -E lazy_itable_init=1,lazy_journal_init=1,nodiscard"
        subprocess.run(
            ["mkfs.ext4", *options.split(), *(["-d", filling] if filling else []), fresh.name],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_MKFS_SECONDS,
        )
        os.fsync(fresh.fileno())
        # Another start may have made it meanwhile; both are the same.
        with contextlib.suppress(FileExistsError):
            os.link(fresh.name, path)
    durable.sync_folder(folder)
    return path


def _is_ext4(path: Path, size: int) -> bool:
    """Whether a template is whole as far as its size and its first block tell: an older version did not sync it."""
    try:
        return path.lstat().st_size == size and ext4.superblock(path) is not None
    except OSError:
        return False


def damaged_copies(sandboxes: Path) -> Iterator[Path]:
    """The copies of damaged images under a folder of sandboxes."""
    for name in (_UNREPAIRED, _BEFORE_REPAIR):
        yield from sandboxes.glob(f"*/{name}")


def remove_tree(folder: Path) -> None:
    """Remove a folder with all in it; `rm` copes with trees of any depth. Raises OSError if something is left."""
    done = subprocess.run(["rm", "-rf", "--one-file-system", "--", str(folder)], stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise OSError(errno.EIO, "Not all of it could be removed", str(folder))


def copy_sparse(source: Path, target: Path, *, share: bool = True) -> None:
    """Copy only what holds data; with `share` the kernel shares or copies the blocks itself where it can.

    A block that is shared takes space at its next write: at a bad time, if the host is full then.
    """
    with open(source, "rb") as old, open(target, "xb") as new:
        size = os.fstat(old.fileno()).st_size
        os.ftruncate(new.fileno(), size)
        position = 0
        while position < size:
            try:
                start = os.lseek(old.fileno(), position, os.SEEK_DATA)
            except OSError:
                return  # nothing but a hole up to the end
            position = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            while start < position:
                count = min(position - start, _CHUNK)
                if share:
                    start += os.copy_file_range(old.fileno(), new.fileno(), count, start, start)
                else:
                    start += os.pwrite(new.fileno(), os.pread(old.fileno(), count, start), start)


def _clone(source: Path, target: Path) -> bool:
    """Make a copy that shares all blocks, where the file system can."""
    with open(source, "rb") as old, open(target, "xb") as new:
        try:
            fcntl.ioctl(new.fileno(), _CLONE, old.fileno())
        except OSError:
            os.unlink(target)
            return False
    return True


def _wait_unused(device: Path) -> None:
    """A namespace that is still being torn down can hold the file system for a moment."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _is_full(folder: Path) -> bool:
    """Whether too little is left for the trial of a disk."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize < _TRIAL_BYTES or (found.f_files > 0 and found.f_favail < _TRIAL_INODES)
