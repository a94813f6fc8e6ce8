"""Bytes that the sandbox of each chat holds, as last seen; on disk, so that stopped sandboxes count after a restart."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cubicle import record
from cubicle.quotas.limits import Scope, Subject
from cubicle.record import BadRecord, Fields, NewerRecord

log = logging.getLogger(__name__)

FILE = "disk.json"
_MAX_CHATS = 50_000
_MAX_SIZE = 32 * 1024**2
_MAX_NAME = 256


@dataclass(frozen=True)
class _Seen:
    """The record of another process, as it was last read."""

    stamp: int = 0
    sums: Counter[Subject] = field(default_factory=Counter)

    def again(self, path: Path) -> _Seen:
        """Blocks. What cannot be read is set aside by whose it is."""
        try:
            stamp = path.stat().st_mtime_ns
            if stamp == self.stamp:
                return self
            sums: Counter[Subject] = Counter()
            for subjects, size in _parsed(record.read(path, _MAX_SIZE)).values():
                sums.update(dict.fromkeys(subjects, size))
            return _Seen(stamp, sums)
        except FileNotFoundError:
            return _Seen()
        except (OSError, BadRecord):
            return self


class DiskUsage:
    """One record for all chats."""

    def __init__(self, folder: Path, others: Sequence[Path] = ()) -> None:
        """`others`: where other processes of the service note theirs."""
        self._path = folder / FILE
        self._others = {each / FILE: _Seen() for each in others}
        self._chats: dict[str, tuple[tuple[Subject, ...], int]] = {}
        self._sums: Counter[Subject] = Counter()
        self._changed = False
        self._writing = asyncio.Lock()

    def open(self) -> None:
        """Read what a service before saw. Blocks."""
        try:
            chats = _parsed(record.read(self._path, _MAX_SIZE))
        except FileNotFoundError:
            return
        except NewerRecord as error:
            log.warning("the disk use of chats is not known before they run: %s", error)
            return
        except (BadRecord, OSError) as error:
            log.error("the record of the disk use of chats is set aside: %s", error)
            with suppress(OSError):
                record.keep_bad(self._path)
            return
        for digest, (subjects, size) in chats.items():
            self._put(digest, subjects, size)

    def note(self, digest: str, subjects: Sequence[Subject], size: int) -> None:
        """So much is held now by the sandbox of a chat of these."""
        known = self._chats.get(digest)
        if known != (tuple(subjects), size) and (known is not None or len(self._chats) < _MAX_CHATS):
            self._put(digest, tuple(subjects), size)
            self._changed = True

    def used(self, subject: Subject) -> int:
        return self._sums[subject] + sum(seen.sums[subject] for seen in self._others.values())

    async def look(self) -> None:
        """See what other processes wrote."""
        for path, seen in self._others.items():
            self._others[path] = await asyncio.to_thread(seen.again, path)

    def forget(self, digest: str) -> None:
        """The chat is removed."""
        if digest in self._chats:
            self._drop(digest)
            self._changed = True

    def keep_only(self, digests: Collection[str]) -> None:
        """Forget the chats that went while no service looked."""
        for digest in [digest for digest in self._chats if digest not in digests]:
            self.forget(digest)

    async def save(self) -> None:
        async with self._writing:
            if not self._changed:
                return
            self._changed = False
            rows = {digest: [size, *_names(subjects)] for digest, (subjects, size) in self._chats.items()}
            try:
                await asyncio.to_thread(record.write, self._path, {"chats": rows})
            except OSError as error:
                self._changed = True
                log.error("the disk use of chats cannot be written: %s", error.strerror)

    def _put(self, digest: str, subjects: tuple[Subject, ...], size: int) -> None:
        if digest in self._chats:
            self._drop(digest)
        self._chats[digest] = (subjects, size)
        for subject in subjects:
            self._sums[subject] += size

    def _drop(self, digest: str) -> None:
        subjects, size = self._chats.pop(digest)
        for subject in subjects:
            self._sums[subject] -= size
            if not self._sums[subject]:
                del self._sums[subject]


def _names(subjects: Sequence[Subject]) -> list[str]:
    """The tenant, and the user if there is one."""
    return [subjects[0].tenant, *(subject.name for subject in subjects[1:])]


def _parsed(fields: Fields) -> dict[str, tuple[tuple[Subject, ...], int]]:
    found: dict[str, tuple[tuple[Subject, ...], int]] = {}
    rows = fields.fields("chats").values
    if len(rows) > _MAX_CHATS:
        raise BadRecord("it has too many chats")
    for digest, row in rows.items():
        if not isinstance(row, list) or len(row) not in (2, 3):
            raise BadRecord("an entry is no list")
        named = dict(zip(("size", "tenant", "user"), row, strict=False))
        entry = Fields(named)
        tenant, size = entry.text("tenant", _MAX_NAME), entry.whole("size")
        subjects = [Subject(Scope.TENANT, tenant)]
        if "user" in named:
            subjects.append(Subject(Scope.USER, tenant, entry.text("user", _MAX_NAME)))
        found[digest] = (tuple(subjects), size)
    return found
