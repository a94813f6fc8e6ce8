"""Which images the sandboxes of a DATA_DIR stand on."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

from cubicle.drivers.oci.records import OciRecords
from cubicle.drivers.oci.trash import Trash
from cubicle.images.users import Standing
from cubicle.record import BadRecord


def sandboxes_by_image(data_dir: Path) -> Standing:
    """How many sandboxes, up, stopped or in the trash, stand on which image. Raises OSError."""
    by_image: Counter[str] = Counter()
    unreadable = 0
    records = OciRecords(data_dir)
    for homes in (records.homes, Trash(records).homes):
        with suppress(FileNotFoundError, NotADirectoryError):
            for home in homes():
                try:
                    by_image[home.meta().image] += 1
                except FileNotFoundError:
                    continue
                except BadRecord:
                    unreadable += 1
    return Standing(by_image, unreadable)
