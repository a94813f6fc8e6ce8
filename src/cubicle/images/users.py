"""Who uses which image: services share IMAGE_DIR, so each leaves a note there, and its sandboxes lie in its DATA_DIR.

IMAGE_DIR/users/<hash of DATA_DIR>   which DATA_DIR, and the images that its service used when it last started
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cubicle import durable, record
from cubicle.record import BadRecord
from cubicle.sandbox.service_lock import service_of


@dataclass(frozen=True, slots=True)
class Standing:
    """What a driver knows of the sandboxes in a DATA_DIR."""

    by_image: Counter[str]
    """How many of them, up, stopped or in the trash, stand on which image."""
    unreadable: int = 0
    """How many do not say it."""


Count = Callable[[Path], Standing]
"""Looks into a DATA_DIR; OSError if that cannot be done."""


@dataclass(frozen=True, slots=True)
class ImageUser:
    """One DATA_DIR and the images that it needs."""

    data_dir: Path
    noted: frozenset[str]
    """What its service used when it last started."""
    sandboxes: Counter[str]
    """How many of its sandboxes, up, stopped or in the trash, stand on which image."""
    serves: bool
    """Whether a service runs over it right now."""
    unreadable: int = 0
    """How many of its sandboxes do not say which image they stand on."""

    @property
    def images(self) -> frozenset[str]:
        return self.noted | frozenset(self.sandboxes)


def leave_note(folder: Path, data_dir: Path, images: Collection[str]) -> None:
    """Say which images the service of a DATA_DIR uses; the note of one whose data is gone counts no more."""
    notes = folder / "users"
    record.make_folder(notes, mode=0o755)
    own = notes / hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]
    record.write(own, {"data_dir": str(data_dir.resolve()), "images": sorted(images)}, mode=0o644)
    for note, other, _ in _notes(folder):
        if _is_gone(other):
            with suppress(OSError):
                durable.remove(note)


def users(folder: Path, count: Count, *data_dirs: Path) -> list[ImageUser]:
    """Every DATA_DIR that has left a note, and these; of one that cannot be looked into only its note is known."""
    noted = {data_dir.resolve(): frozenset[str]() for data_dir in data_dirs}
    noted |= {data_dir: images for _, data_dir, images in _notes(folder)}
    found = []
    for data_dir, images in noted.items():
        if _is_gone(data_dir):
            continue
        try:
            standing = count(data_dir)
            found.append(ImageUser(data_dir, images, standing.by_image, _serves(data_dir), standing.unreadable))
        except OSError:  # its disk has failed, say: no reason for another service not to start
            found.append(ImageUser(data_dir, images, Counter(), serves=True, unreadable=1))
    return found


def _serves(data_dir: Path) -> bool:
    """Another service's lock file may be anything; what cannot be a lock is held by nobody."""
    try:
        return service_of(data_dir) is not None
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            return False
        raise


def _is_gone(path: Path) -> bool:
    """Whether it is removed for certain. A disk that fails, or is not mounted, may come back with its sandboxes."""
    try:
        return not path.is_dir()
    except (OSError, ValueError):
        return False


def _notes(folder: Path) -> Iterator[tuple[Path, Path, frozenset[str]]]:
    """(note, DATA_DIR, images); what cannot be read says nothing."""
    with suppress(FileNotFoundError):
        for note in list((folder / "users").iterdir()):
            with suppress(OSError, BadRecord):
                fields = record.read(note)
                yield note, Path(fields.text("data_dir")), frozenset(fields.texts("images"))
