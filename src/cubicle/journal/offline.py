"""An entry that the command line adds to a chat's journal, while no service runs: only one of both writes there."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path

from cubicle.journal import format
from cubicle.journal.chat_files import ChatFiles


def append_entry(folder: Path, limit: int, kind: str, fields: Mapping[str, object]) -> None:
    """Add an entry to the journal in this folder, on disk; a chat without a journal gets none. The caller sees to it
    that no service runs meanwhile. Blocks. Raises OSError."""
    try:
        alone = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        fcntl.flock(alone, fcntl.LOCK_EX)  # two commands at once
        files = ChatFiles(folder, limit)
        files.open()
        try:
            if files.number:
                files.append([(files.number + 1, format.body(time.time(), kind, fields))], sync=True)
        finally:
            files.close()
    finally:
        os.close(alone)
