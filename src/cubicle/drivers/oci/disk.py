"""The disk of a sandbox: one folder that holds all it can write, and the limit on it.

Three ways, the first that works on the file system of DATA_DIR:
    quota     a project quota: no cost, no second file system
    image     a sparse ext4 image on a loop device: costs a mount, limits exactly, and gives freed space back
    watchdog  a plain folder, measured now and then; a sandbox that is over is stopped
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cubicle import durable, record
from cubicle.drivers.oci import loops, mounts, quota

# The inode tables need no zeroing: the image is sparse, so they read as zeros already.
_EXT4_OPTIONS = "noinit_itable,discard,errors=remount-ro"
_BIND = 4096
_CHUNK = 8 * 1024 * 1024
_MKFS_SECONDS = 60


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

    def make(self, mode: DiskMode, templates: Path) -> None:
        """Make an empty one."""
        if mode is DiskMode.IMAGE:
            copy_sparse(template(templates, self.size), self.image)
            durable.sync_file(self.image)
            return
        self.tree.mkdir(mode=0o710)
        if mode is DiskMode.QUOTA:
            quota.limit(self.tree, self.size, str(self.tree))

    def attach(self) -> None:
        """Mount it at the target, with its layout."""
        self.target.mkdir(parents=True, exist_ok=True)
        if self.image.exists():
            self._attach_image()
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
        """Remove all of it. Nothing of the sandbox runs any more; `rm` copes with trees of any depth."""
        if self.tree.exists():
            subprocess.run(["rm", "-rf", "--one-file-system", "--", str(self.tree)], check=True)
        self.image.unlink(missing_ok=True)

    def _attach_image(self) -> None:
        with loops.attached(self.image, self.home / "loop") as number:
            flags = mounts.NOSUID | mounts.NODEV
            mounts.mount(str(loops.node(number)), self.target, "ext4", flags, _EXT4_OPTIONS)

    def _lay_out(self) -> None:
        root = self.first_id
        os.chown(self.target, 0, root)
        self.target.chmod(0o710)
        for name, owner, mode in (
            ("upper", root, 0o755),
            ("work", 0, 0o700),
            ("uploads", root, 0o755),
            ("outputs", root + 1000, 0o755),
            (".skills", root, 0o755),
        ):
            folder = self.target / name
            folder.mkdir(mode=mode, exist_ok=True)
            os.chown(folder, owner, owner)
        os.rename(self.target / ".skills", self.target / "skills")  # the last one says that all are there


def probe(folder: Path) -> DiskMode:
    """The best way to limit disks in this folder. Makes and removes a small file or two."""
    if quota.works(folder):
        return DiskMode.QUOTA
    with contextlib.suppress(OSError, subprocess.SubprocessError), tempfile.TemporaryDirectory(dir=folder) as trial:
        disk = Disk(Path(trial), Path(trial, "mounted"), 16 * 1024 * 1024, 0)
        disk.make(DiskMode.IMAGE, Path(trial))
        disk.attach()
        disk.detach()
        return DiskMode.IMAGE
    return DiskMode.WATCHDOG


def template(folder: Path, size: int) -> Path:
    """A formatted image of this size, made once: copying its few blocks is faster than formatting again."""
    path = folder / f"ext4-{size}.img"
    if os.path.lexists(path):
        if _is_ext4(path, size):
            return path
        record.keep_bad(path)
    record.make_folder(folder)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".ext4-") as fresh:
        fresh.truncate(size)
        options = "-q -F -m 0 -b 4096 -J size=4 -O ^resize_inode -E lazy_itable_init=1,lazy_journal_init=1,nodiscard"
        subprocess.run(
            ["mkfs.ext4", *options.split(), fresh.name],
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
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return os.fstat(file.fileno()).st_size == size and file.read(2048)[1080:1082] == b"\x53\xef"
    except OSError:
        return False


def copy_sparse(source: Path, target: Path) -> None:
    """Copy only what holds data; the kernel shares or copies the blocks itself where it can."""
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
                start += os.copy_file_range(old.fileno(), new.fileno(), count, start, start)


def used_bytes(tree: Path, limit: int) -> int:
    """Bytes on disk under a folder that a sandbox writes meanwhile; counting ends once the limit is passed."""
    total = 0
    with contextlib.suppress(OSError):
        for _, _, files, fd in os.fwalk(tree, follow_symlinks=False):
            for name in files:
                with contextlib.suppress(OSError):
                    total += os.stat(name, dir_fd=fd, follow_symlinks=False).st_blocks * 512
            if total > limit:
                break
    return total
