"""Empty disks that hold the initial files already: copied with the disk, they cost a new sandbox next to nothing.

DATA_DIR/templates/ext4-<size>-<digest>.img   made by mkfs itself from a folder; nothing is mounted. One that was not
                                              used for a day goes when another is made.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from cubicle.drivers.oci import disk
from cubicle.sandbox.initial_files import InitialFile, InitialFiles, InitialSource, nothing

log = logging.getLogger(__name__)

_UNUSED_SECONDS = 24 * 3600.0
_AGAIN_SECONDS = 600.0
_WAIT_SECONDS = 2.0
"""For one that another start makes. Whoever waits keeps a place among the starts, also from chats that only wake."""


@dataclass(slots=True)
class FilledTemplates:
    """Blocking; used from threads. Who gets none fills the sandbox when it is up, which takes longer."""

    source: InitialSource = nothing
    _failed: dict[str, float] = field(default_factory=dict)
    """When one could not be made."""
    _making: threading.Lock = field(default_factory=threading.Lock)

    def find(self, folder: Path, size: int, first_id: int) -> Path | None:
        """A disk of this size for a new sandbox, made if it is missing; None if there is or can be none."""
        try:
            initial = self.source()
        except (OSError, ValueError) as error:
            log.warning("the initial files of new sandboxes cannot be read: %s", error)
            return None
        if initial is None:
            return None
        name = f"ext4-{size}-{initial.digest}-{first_id}.img"
        if self._has_failed(name) or not self._making.acquire(timeout=_WAIT_SECONDS):
            return None
        try:
            if self._has_failed(name):  # meanwhile, for another start
                return None
            path = disk.template(folder, size, name, lambda: _folder(folder, initial, first_id))
            os.utime(path)
            return path
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            log.warning("no disk could be made with the initial files of new sandboxes: %s", error)
            self._failed[name] = time.monotonic()
            return None
        finally:
            self._making.release()
            _forget_unused(folder, name)

    def _has_failed(self, name: str) -> bool:
        """Whether it could not be made, not long ago."""
        return time.monotonic() < self._failed.get(name, -_AGAIN_SECONDS) + _AGAIN_SECONDS


def _folder(beside: Path, initial: InitialFiles, first_id: int) -> tempfile.TemporaryDirectory[str]:
    """A folder with what a disk holds at first, owned as there."""
    made = tempfile.TemporaryDirectory(dir=beside, prefix=".filled-")
    try:
        root = Path(made.name, disk.NEW_SKILLS)
        root.mkdir()
        for file in initial.read():
            _write(root, file)
        for folder, _, names in os.walk(root):
            os.chown(folder, first_id, first_id)
            os.chmod(folder, 0o755)  # noqa: S103 (everyone in the sandbox may read it)
            for name in names:
                os.chown(os.path.join(folder, name), first_id, first_id)
        return made
    except BaseException:
        made.cleanup()
        raise


def _write(root: Path, file: InitialFile) -> None:
    path = PurePosixPath(file.path)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{file.path} is no path of a file within a folder")
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as out:
        out.write(file.content)
    target.chmod(file.mode)


def _forget_unused(folder: Path, name: str) -> None:
    """Called only by who has looked at its own just now; one that another service copies was used just now, too."""
    for path in folder.glob("ext4-*-*-*.img"):
        try:
            if path.name != name and time.time() - path.stat().st_mtime > _UNUSED_SECONDS:
                path.unlink()
        except OSError:
            continue
    for path in folder.glob(".filled-*"):  # of a service that was killed
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(path)
