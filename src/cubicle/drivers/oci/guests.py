"""The guest's .pyz files, kept by content: a sandbox that runs keeps the file it was started with."""

from __future__ import annotations

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


def ensure(folder: Path, base: str, rootfs: Path) -> GuestFile:
    """The guest of today for a base, compiled by the base's own Python, so that it starts in half the time."""
    sources = bundle.build()
    digest = bundle.digest(sources)
    path = folder / f"{digest}-{hashlib.sha256(base.encode()).hexdigest()[:16]}.pyz"
    if path.exists():
        return GuestFile(path, digest)
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    try:
        content = bundle.build(["chroot", str(rootfs), "/usr/bin/python3"])
    except (OSError, subprocess.SubprocessError):
        content = sources
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as fresh:
        fresh.write(content)
        os.fchmod(fresh.fileno(), 0o644)
    os.replace(fresh.name, path)
    return GuestFile(path, digest)
