"""The guest's .pyz files, kept by content: a sandbox that runs keeps the file it was started with."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cubicle.guest import bundle


@dataclass(frozen=True, slots=True)
class GuestFile:
    path: Path
    digest: str
    """Of the sources: two files with the same digest are the same guest."""


def ensure(folder: Path, stage: Path, base: str, rootfs: Path) -> GuestFile:
    """The guest of today for a base, compiled by the base's own Python, so that it starts in half the time.

    It is kept in `folder`, and handed to sandboxes from `stage`, into which their root user may look.
    """
    sources = bundle.build()
    digest = bundle.digest(sources)
    kept = folder / f"{digest}-{hashlib.sha256(base.encode()).hexdigest()[:16]}.pyz"
    shown = stage / kept.name
    if not kept.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            content = bundle.build(["chroot", str(rootfs), "/usr/bin/python3"])
        except (OSError, subprocess.SubprocessError):
            content = sources  # it compiles itself at each start
        try:
            _place(content, kept)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _place(content, shown)  # in memory, for this boot: a full disk does not keep the service from starting
    if not shown.exists():
        _place(kept.read_bytes(), shown)
    return GuestFile(shown, digest)


def _place(content: bytes, path: Path) -> None:
    """Write a file so that it is there whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as fresh:
        try:
            fresh.write(content)
            fresh.flush()
            os.fchmod(fresh.fileno(), 0o644)
            os.replace(fresh.name, path)
        except OSError:
            os.unlink(fresh.name)
            raise
