"""How much a sandbox has on disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
