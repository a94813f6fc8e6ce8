"""The trash: folders of removed sandboxes, with their disks, in DATA_DIR/trash/<name>/.

A folder is there or in DATA_DIR/sandboxes, by one rename. Beside what a sandbox's folder holds (records.py):
discarded.json   whose it was, when and why it was removed
A folder that is being deleted is called <name>.deleting, and the next start of the driver goes on with it.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cubicle import durable, record
from cubicle.drivers.common.disk_usage import used_bytes
from cubicle.drivers.oci.disk import remove_tree
from cubicle.drivers.oci.records import OciHome, OciRecords
from cubicle.machine.errors import NotRunning, OwnerHasSandbox
from cubicle.record import BadRecord
from cubicle.sandbox.trash import Discarded, TrashNote

log = logging.getLogger(__name__)

_NOTE = "discarded.json"
_DELETING = ".deleting"
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Trash:
    """The removed sandboxes of one DATA_DIR. Blocking; runs in threads."""

    records: OciRecords

    def homes(self) -> Iterator[OciHome]:
        for entry in sorted(os.listdir(self.records.trash)):
            if not entry.endswith(_DELETING):
                yield OciHome(self.records.trash / entry)

    def holds(self, name: str) -> bool:
        return self._place(name).exists()

    def discard(self, home: OciHome, note: TrashNote) -> None:
        """Move a sandbox that is down, and released, to the trash. Its owner is free from the rename on."""
        durable.make_folder(self.records.trash)
        _write_note(home, note)
        self._take_out(home, self._place(home.name))

    def delete(self, home: OciHome) -> None:
        """Delete a sandbox that is down, and released, for good. After a crash it is whole, or deleted by `finish`."""
        durable.make_folder(self.records.trash)
        going = self.records.trash / (home.name + _DELETING)
        if going.exists():
            _delete(going)
        self._take_out(home, going)
        _delete(going)

    def _take_out(self, home: OciHome, place: Path) -> None:
        with self.records.owners_locked():
            durable.move(home.path, place)
            owner = OciHome(place).owner() or self.records.owned().get(home.name)
            if owner is not None and self.records.link(owner) == home.name:
                durable.remove(self.records.owners / owner)

    def discarded(self) -> list[Discarded]:
        with suppress(FileNotFoundError):
            return [_see(home) for home in self.homes()]
        return []

    def restore(self, name: str, owner: str) -> None:
        """Move a sandbox back. Until the rename it is in the trash, and a link to it counts for nothing."""
        place, home = OciHome(self._place(name)), self.records.home(name)
        if not place.path.exists():
            raise NotRunning("There is no such sandbox in the trash.")
        with self.records.owners_locked():
            link = self.records.owners / owner
            if link.is_symlink() and os.path.lexists(self.records.sandboxes / os.readlink(link)):
                raise OwnerHasSandbox(os.readlink(link))
            if place.owner() != owner:
                record.clear_folder(place.path / "owner")
                durable.relink(place.path / "owner", owner)
            durable.relink(link, name)
            durable.move(place.path, home.path)
        durable.remove(home.path / _NOTE)

    def purge(self, name: str) -> bool:
        """Delete one for good; False if it is not here. Nothing here needs space on the disk."""
        place = self._place(name)
        going = place.with_name(place.name + _DELETING)
        try:
            with self.records.owners_locked():
                os.rename(place, going)
        except FileNotFoundError:
            return False
        _delete(going)
        return True

    def finish(self) -> None:
        """Go on with what a crash left half-deleted."""
        for entry in os.listdir(self.records.trash):
            if entry.endswith(_DELETING):
                _delete(self.records.trash / entry)

    def _place(self, name: str) -> Path:
        return self.records.trash / self.records.home(name).name


def _write_note(home: OciHome, note: TrashNote) -> None:
    """On a full disk the bundle, which each start writes anew, makes room for it; a sandbox without a note can still be
    restored."""
    content = replace(note, size=used_bytes(home.path, 1 << 62)).to_json()
    try:
        durable.write(home.path / _NOTE, content)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        shutil.rmtree(home.bundle, ignore_errors=True)
        with suppress(OSError):
            durable.write(home.path / _NOTE, content)


def _see(home: OciHome) -> Discarded:
    note = None
    image = ""
    with suppress(OSError, BadRecord):
        note = TrashNote.parse(record.read_bytes(home.path / _NOTE))
    with suppress(OSError, BadRecord):
        image = home.meta().image
    return Discarded(home.name, home.owner(), note, image)


def _delete(folder: Path) -> None:
    """What cannot be removed (a damaged folder, or one where something is mounted) holds up nothing else."""
    try:
        remove_tree(folder)
    except OSError as error:
        log.error("what is left of a deleted sandbox cannot be removed; the next start tries it again: %s", error)
