"""Who uses which image: services share IMAGE_DIR, so each leaves a note there, and its sandboxes lie in its DATA_DIR.

IMAGE_DIR/users/<hash of DATA_DIR>   which DATA_DIR, and the images that its service used when it last started
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cubicle.drivers.oci.records import Records
from cubicle.drivers.oci.trash import Trash
from cubicle.sandbox.serving import service_of


@dataclass(frozen=True, slots=True)
class User:
    """One DATA_DIR and the images that it needs."""

    data_dir: Path
    noted: frozenset[str]
    """What its service used when it last started."""
    sandboxes: Counter[str]
    """How many of its sandboxes, up, stopped or in the trash, stand on which image."""
    serves: bool
    """Whether a service runs over it right now."""

    @property
    def images(self) -> frozenset[str]:
        return self.noted | frozenset(self.sandboxes)


def leave_note(folder: Path, data_dir: Path, images: Collection[str]) -> None:
    """Say which images the service of a DATA_DIR uses; the note of one whose data is gone counts no more."""
    notes = folder / "users"
    notes.mkdir(parents=True, exist_ok=True)
    own = notes / hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]
    fresh = own.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({"data_dir": str(data_dir.resolve()), "images": sorted(images)}))
    fresh.rename(own)
    for note, other, _ in _notes(folder):
        if not other.is_dir():
            note.unlink(missing_ok=True)


def users(folder: Path, *data_dirs: Path) -> list[User]:
    """Every DATA_DIR that has left a note, and these. Raises OSError when one cannot be looked into."""
    noted = {data_dir.resolve(): frozenset[str]() for data_dir in data_dirs}
    noted |= {data_dir: images for _, data_dir, images in _notes(folder)}
    return [_user(data_dir, images) for data_dir, images in noted.items() if data_dir.is_dir()]


def _user(data_dir: Path, noted: frozenset[str]) -> User:
    sandboxes: Counter[str] = Counter()
    records = Records(data_dir)
    for homes in (records.homes, Trash(records).homes):
        with suppress(FileNotFoundError):
            sandboxes.update(meta.image for home in homes() if (meta := home.meta()) is not None)
    return User(data_dir, noted, sandboxes, service_of(data_dir) is not None)


def _notes(folder: Path) -> Iterator[tuple[Path, Path, frozenset[str]]]:
    """(note, DATA_DIR, images); what cannot be read says nothing."""
    with suppress(FileNotFoundError):
        for note in list((folder / "users").iterdir()):
            try:
                fields = json.loads(note.read_text())
                yield note, Path(fields["data_dir"]), frozenset(map(str, fields["images"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue
