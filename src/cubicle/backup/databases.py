"""SQLite files in a backup: a service may write to them meanwhile, and part of what they hold is in another file."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

log = logging.getLogger(__name__)

SUFFIX = ".sqlite3"
BESIDE = (f"{SUFFIX}-wal", f"{SUFFIX}-shm", f"{SUFFIX}-journal")
"""Files of the same database that a copy of it does without."""
_BUSY_SECONDS = 10.0


@contextmanager
def copy_of(path: Path) -> Iterator[Path]:
    """The database as it is at one moment; a file that is damaged, as it is. Blocks."""
    with tempfile.TemporaryDirectory(prefix="cubicle-backup-") as folder:
        copy = Path(folder) / path.name
        try:
            _copy(path, copy)
        except sqlite3.Error as error:
            log.warning("a database is kept as it is, since it cannot be read: %s", error)
            copy = path
        yield copy


def _copy(path: Path, copy: Path) -> None:
    source = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=_BUSY_SECONDS)
    with closing(source), closing(sqlite3.connect(copy)) as target:
        source.backup(target)
