"""Gives a sandbox that was set aside back to a chat."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from cubicle import durable, record
from cubicle.drivers.oci.disk import copy_sparse
from cubicle.drivers.oci.records import Meta, OciHome, OciRecords
from cubicle.drivers.oci.repair import known_meta
from cubicle.machine.errors import CannotRescue
from cubicle.sandbox.lost_found import NOTE, Lost
from cubicle.sandbox.warm_pool import new_name

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHECK_SECONDS = 3600
_FIXED = 3
"""Exit codes of e2fsck up to this one: the file system is whole, or was made so."""


def rescue(records: OciRecords, lost: Lost, owner: str, today: Meta) -> str:
    """Give it to an owner who has no sandbox; the sandbox's name. At every step it is whole, here or there."""
    if not lost.is_sandbox:
        raise CannotRescue(f"{lost.name} is not the folder of a sandbox: look at it in {lost.path}.")
    if os.path.lexists(records.owners / owner):
        raise CannotRescue("The chat has a sandbox already: name another chat, or remove that one (`cubicle rm`).")
    home = OciHome(lost.path)
    if (home.path / "disk.img").is_file():
        _repair_disk(home.path / "disk.img")
    known_meta(home, today)
    home.forget_run()
    home.save_failure("")
    if os.path.lexists(home.path / "owner"):
        record.keep_bad(home.path / "owner")
    durable.link(home.path / "owner", owner)
    target = records.home(_free_name(records, lost))
    durable.move(home.path, target.path)
    records.bind(target, owner)
    record.remove(target.path / NOTE)
    return target.name


def _free_name(records: OciRecords, lost: Lost) -> str:
    """Its own, unless that is another's by now."""
    name = os.path.basename(lost.was)
    taken = not _NAME.fullmatch(name) or os.path.lexists(records.sandboxes / name)
    return new_name() if taken else name


def _repair_disk(image: Path) -> None:
    """Make its file system whole. What goes beyond the journal is done with a copy of the image beside it."""
    if _checked(image, "-p"):
        return
    copy = image.with_name(f"disk.img.before-{record.stamp()}")
    free = shutil.disk_usage(image.parent).free
    if image.stat().st_blocks * 512 > free:
        raise CannotRescue(f"Its file system needs repair, and there is no room for a copy first: {image}.")
    with contextlib.suppress(FileExistsError):
        copy_sparse(image, copy)
        durable.sync_file(copy)
    if not _checked(image, "-fy"):
        raise CannotRescue(f"Its file system cannot be repaired by e2fsck: {image}.")


def _checked(image: Path, how: str) -> bool:
    done = subprocess.run(
        ["e2fsck", how, str(image)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_CHECK_SECONDS,
        check=False,
    )
    return done.returncode <= _FIXED
