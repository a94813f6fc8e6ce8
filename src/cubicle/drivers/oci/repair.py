"""Makes the records of the sandboxes fit together again, without losing anything that may be somebody's.

What a person could have written is on the disk of a sandbox (disk.img or tree/), so only a folder without a disk is
ever removed here, and what is in `making`, which nobody was ever given. Everything else is repaired where it is, so
that its chat goes on, or set aside in lost+found.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from pathlib import Path

from cubicle import durable, record
from cubicle.drivers.oci.records import Meta, OciHome, OciRecords
from cubicle.record import BadRecord, NewerRecord

log = logging.getLogger(__name__)


def known_meta(home: OciHome, today: Meta) -> Meta:
    """What a sandbox is made from; where its record is lost, that is told from its disk, and written down again.

    Raises NewerRecord, and FileNotFoundError if there is no disk either.
    """
    try:
        return home.meta()
    except NewerRecord:
        raise
    except (FileNotFoundError, BadRecord) as error:
        if not home.has_disk():
            raise FileNotFoundError(home.path / "disk.img") from None
        why = str(error) if isinstance(error, BadRecord) else "it is missing"
    if os.path.lexists(home.path / "meta.json"):
        record.keep_bad(home.path / "meta.json")
    image = home.path / "disk.img"
    meta = Meta(today.image, image.stat().st_size if image.is_file() else today.disk_bytes)
    home.save_meta(meta)
    log.warning("meta.json of sandbox %s was written anew from its disk: %s", home.name, why)
    return meta


def unsettled(records: OciRecords) -> set[str]:
    """The sandboxes that `repair` may have to move: they must be down by then."""
    owned, found = records.owned(), set()
    for home in records.homes():
        try:
            if records.owner_of(home, owned) is None:
                home.meta()
        except (BadRecord, FileNotFoundError):
            found.add(home.name)
            rival = records.links().get(home.owner() or "")
            found |= {rival} if rival else set()
    return found


def repair(records: OciRecords, today: Meta) -> None:
    """Do it for all of DATA_DIR. No other program uses it meanwhile, and what is unsettled is down."""
    for entry in records.making.iterdir():
        _discard(entry)
    owners = _links(records)
    for home in list(records.homes()):
        try:
            _repair_home(records, home, owners, today)
        except NewerRecord as error:
            log.warning("sandbox %s is left as it is: %s", home.name, error)
        except OSError as error:
            log.error("the records of sandbox %s could not be repaired: %s", home.name, error)
    for owner, name in owners.items():
        if not os.path.lexists(records.sandboxes / name):
            log.warning("the owner's link %s leads to no sandbox and was removed", owner)
            with contextlib.suppress(OSError):
                durable.remove(records.owners / owner)


def _links(records: OciRecords) -> dict[str, str]:
    """Sandbox by owner; what is not a link of ours is set aside."""
    owners = records.links()
    for entry in records.owners.iterdir():
        if entry.name.startswith(".") and entry.name.endswith(".new"):
            with contextlib.suppress(OSError):
                entry.unlink()  # a link that was on its way when the power went
        elif entry.name not in owners:
            records.lost.set_aside(entry, "it is no link to a sandbox")
    by_name: dict[str, str] = {}
    for owner, name in list(owners.items()):
        first = by_name.setdefault(name, owner)
        if first != owner:
            # Two owners of one sandbox: it is the one's that the sandbox itself names.
            loser = first if OciHome(records.sandboxes / name).owner() == owner else owner
            by_name[name] = owner if loser == first else first
            del owners[loser]
            records.lost.set_aside(records.owners / loser, f"sandbox {name} belongs to another chat", loser)
    return owners


def _repair_home(records: OciRecords, home: OciHome, owners: dict[str, str], today: Meta) -> None:
    by_name = {name: owner for owner, name in owners.items()}
    owner = by_name.get(home.name)
    copy = home.owner()
    if not home.has_disk():
        if (run := home.run()) is not None and run.process.alive:
            return  # the disk has lost its name, and is still in use
        _repair_without_disk(records, home, owner or copy, owners)
        return
    if owner is None and copy is not None:
        if not _win(records, home, copy, owners):
            return
        owner = copy
    if owner is None:
        if os.path.lexists(home.path / "owner"):
            records.lost.set_aside(home.path, "its owner cannot be read")
            return
        try:
            home.meta()
        except NewerRecord:
            raise
        except (FileNotFoundError, BadRecord) as error:
            records.lost.set_aside(home.path, f"meta.json: {error}; it is not known whose it is")
        return
    if owners.get(owner) != home.name or copy != owner:
        records.bind(home, owner)
        owners[owner] = home.name
    known_meta(home, today)


def _repair_without_disk(records: OciRecords, home: OciHome, owner: str | None, owners: dict[str, str]) -> None:
    """There is nothing of a person in it: half-made by an older version, or somebody has taken its disk away."""
    if os.path.lexists(home.path / "meta.json"):
        records.lost.set_aside(home.path, "its disk is missing", owner)
    else:
        shutil.rmtree(home.path)
    if owner is not None and owners.get(owner) == home.name:
        del owners[owner]
        durable.remove(records.owners / owner)


def _win(records: OciRecords, home: OciHome, owner: str, owners: dict[str, str]) -> bool:
    """Whether a sandbox that names an owner is the owner's: of two, the one that was used last; the other is set aside.

    Older versions could give a chat two sandboxes when the file system had no inode left.
    """
    other = records.home(owners[owner]) if owner in owners else None
    if other is None or not other.has_disk():
        if other is not None:
            durable.relink(records.owners / owner, home.name)
            owners[owner] = home.name
        return True
    why = "its chat has another sandbox, which was used later"
    if other.last_use() >= home.last_use():
        records.lost.set_aside(home.path, why, owner)
        return False
    durable.relink(records.owners / owner, home.name)
    owners[owner] = home.name
    records.lost.set_aside(other.path, why, owner)
    return True


def _discard(path: Path) -> None:
    """Of `making`: nobody was ever given it."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
