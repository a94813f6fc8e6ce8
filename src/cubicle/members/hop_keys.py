"""The secret that members sign with, from one file that all have: the first line signs, every line is believed.

To change it: put the new one last, then first, then take the old one away, each when all members have the file before.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from cubicle import record
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_AGAIN_SECONDS = 0.5
"""For one that was signed with what is not known: another member may have read the file already."""
_MIN_LENGTH = 16
_MAX_SIZE = 64 * 1024


class HopKeys:
    """A secret that all members of one parent have from it, or a file."""

    def __init__(self, secret: bytes = b"", file: Path | None = None) -> None:
        """Raises BadRecord, OSError if there is a file and it cannot be used."""
        self._file = file
        self._keys = _read(file) if file is not None else (secret,)
        self._looked = time.monotonic()

    @property
    def signing(self) -> bytes:
        return self.believed[0]

    @property
    def believed(self) -> tuple[bytes, ...]:
        self._look(_LOOK_SECONDS)
        return self._keys

    def believed_now(self) -> tuple[bytes, ...]:
        """The same, of the file as it is."""
        self._look(_AGAIN_SECONDS)
        return self._keys

    def _look(self, seconds: float) -> None:
        if self._file is not None and time.monotonic() - self._looked > seconds:
            self._looked = time.monotonic()
            try:
                self._keys = _read(self._file)
            except (BadRecord, OSError) as error:
                log.error("the secret of the members cannot be read, and stays as it was: %s", error)


def _read(file: Path) -> tuple[bytes, ...]:
    """In a volume of a Secret the file is a link, and another one after each change."""
    content = record.read_bytes(Path(os.path.realpath(file)), _MAX_SIZE)
    keys = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not keys or min(map(len, keys)) < _MIN_LENGTH:
        raise BadRecord(f"a secret of members has at least {_MIN_LENGTH} characters")
    return keys
