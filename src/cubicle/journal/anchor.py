"""The numbers that the journals had reached: by them it is noticed that the end of one is missing, or all of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from cubicle import record
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

NAME = "numbers.json"
DIGEST = re.compile("[0-9a-f]{32}")
_MAX_SIZE = 64 << 20


def read(folder: Path) -> dict[bytes, int]:
    """What was last saved; none if there is no such record. A damaged one is set aside. Blocks."""
    try:
        return _read(folder)
    except (BadRecord, OSError) as error:
        log.warning("the numbers of the journals cannot be read, and were set aside: %s", error)
        record.keep_bad(folder / NAME)
        return {}


def peek(folder: Path) -> dict[bytes, int]:
    """The same for one who changes nothing."""
    try:
        return _read(folder)
    except (BadRecord, OSError):
        return {}


def _read(folder: Path) -> dict[bytes, int]:
    try:
        numbers = record.read(folder / NAME, _MAX_SIZE).fields("numbers").values
    except FileNotFoundError:
        return {}
    good = {digest: number for digest, number in numbers.items() if isinstance(number, int) and number > 0}
    return {bytes.fromhex(digest): number for digest, number in good.items() if DIGEST.fullmatch(digest)}


def save(folder: Path, numbers: Mapping[bytes, int]) -> None:
    """Blocks. Raises OSError."""
    record.write(folder / NAME, {"numbers": {digest.hex(): number for digest, number in numbers.items()}})


def forget(folder: Path, digest: str) -> None:
    """A chat was removed, while no service runs. Blocks."""
    numbers = read(folder)
    if numbers.pop(bytes.fromhex(digest), None) is not None:
        save(folder, numbers)
