"""A small disk that a test can fill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 1 MiB at this place. Blocks."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "audit-test", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take all that is left of a disk."""
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while file.write(b"x" * 4096):
            pass
