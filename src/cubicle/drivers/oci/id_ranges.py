"""Which range of the host's user ids a sandbox has while it is up: its own, among all services of the host.

/run/cubicle/ids/<number>   symlink to the folder of the sandbox that has this range. It is made in one step, so a range
                            has one sandbox; it goes with the boot, as all processes do.

The ids that files have on disk are those of the image for every sandbox (`SUBUID_START`); a mount shows them as the
range of the moment. So nothing on a disk depends on a range, and a copied, restored or rescued sandbox needs no change.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cubicle.drivers.oci.config import IDS
from cubicle.machine.errors import StartFailed

FIRST_RANGE = 0x7000_0000
COUNT = 0xFFE
"""Ranges above the one of the images, below 0x7FFF0000: systemd gives out none from 0x70000000 on, and some programs
take an id of 2^31 or more for a negative number."""
_LOCK_SECONDS = 10.0
_STALE_SECONDS = 600.0


class NoFreeRange(StartFailed):
    """Every range of ids is in use."""


@dataclass(frozen=True, slots=True)
class IdRanges:
    """The ranges of this host. Blocking; runs in threads."""

    folder: Path

    def claim(self, home: Path) -> int:
        """The first id of a range that only this sandbox has until `release`: usually the one that it had before."""
        number = _preferred(home)
        with self._locked():
            for reclaims in (False, True):
                if reclaims:
                    self._drop_stale()
                for step in range(COUNT):
                    found = 1 + (number - 1 + step) % COUNT
                    if self._take(found, home):
                        return first_id(found)
        raise NoFreeRange("Every range of user ids on this host is in use: stop some sandboxes.")

    def release(self, home: Path, known: int | None = None) -> None:
        """Give the range of a sandbox back: none of its processes runs any more."""
        wanted = number_of(known) if known is not None else _preferred(home)
        with self._locked():
            if not self._give_back(wanted, home) and known is None:
                for number in self._numbers():
                    self._give_back(number, home)

    def sweep(self, homes: Path, up: Mapping[str, int]) -> None:
        """Make the claims of the sandboxes under a folder those of the ones that are up, by the first id that each has.
        Nobody else starts any there meanwhile."""
        with self._locked():
            self._drop(lambda claim: _names(claim, homes) and os.path.basename(os.readlink(claim)) not in up)
            for name, first in up.items():
                if is_own(first):
                    self._take(number_of(first), homes / name)

    def _take(self, number: int, home: Path) -> bool:
        try:
            os.symlink(home, self._link(number))
        except FileExistsError:
            if self._holder(number) != str(home):
                return False
            os.unlink(self._link(number))  # its own, of a start that was cut off; a new link says when this one began
            os.symlink(home, self._link(number))
        return True

    def _give_back(self, number: int, home: Path) -> bool:
        if self._holder(number) != str(home):
            return False
        os.unlink(self._link(number))
        return True

    def _drop_stale(self) -> None:
        """Give back what nothing uses: no process has an id of the range, and it was not claimed just now."""
        used = {number_of(owner) for owner in _process_owners()}
        now = time.time()
        self._drop(lambda link: int(link.name) not in used and abs(now - link.lstat().st_mtime) > _STALE_SECONDS)

    def _drop(self, wanted: Callable[[Path], bool]) -> None:
        for number in self._numbers():
            link = Path(self._link(number))
            with suppress(OSError):
                if wanted(link):
                    link.unlink()

    def _numbers(self) -> list[int]:
        return [int(name) for name in os.listdir(self.folder) if name.isascii() and name.isdigit() and len(name) < 6]

    def _holder(self, number: int) -> str | None:
        try:
            return os.readlink(self._link(number))
        except OSError:
            return None

    def _link(self, number: int) -> str:
        return f"{self.folder}/{number}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time, of all services. It is held for moments; who holds it for long is stopped or ill."""
        self.folder.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StartFailed("Another service holds the list of user ids.") from None
                    time.sleep(0.002)
            yield
        finally:
            os.close(folder)


def first_id(number: int) -> int:
    return FIRST_RANGE + number * IDS


def number_of(first: int) -> int:
    return (first - FIRST_RANGE) // IDS


def is_own(first: int) -> bool:
    """Whether a range is one that a single sandbox has."""
    return first % IDS == 0 and 1 <= number_of(first) <= COUNT


def _preferred(home: Path) -> int:
    digest = hashlib.sha256(os.fsencode(home)).digest()
    return 1 + int.from_bytes(digest[:8], "big") % COUNT


def _names(claim: Path, homes: Path) -> bool:
    return os.path.dirname(os.readlink(claim)) == str(homes)


def _process_owners() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                yield os.stat(f"/proc/{entry}").st_uid
