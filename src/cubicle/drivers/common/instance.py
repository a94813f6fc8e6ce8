"""The drivers over one DATA_DIR: how the host knows them, and which of them is alone."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from cubicle.sandbox.service_lock import open_lock


def instance_of(data_dir: Path) -> str:
    """The name under which a DATA_DIR has its objects on the host or the engine."""
    return hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:12]


class SharedLock:
    """Held by every driver over a DATA_DIR: the service's, and that of a command of the command line beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def join(self) -> None:
        """Be one of the drivers."""
        if self._fd is None:
            self._fd = open_lock(self._path)
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def is_alone(self) -> bool:
        """Whether this is the only one; then none can join until it says `join` or closes. Only such a one cleans."""
        if self._fd is None:
            return False
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.join()
            return False
        return True

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
