"""What the driver keeps about a sandbox on disk, in DATA_DIR/sandboxes/<name>/.

meta.json   written last when a sandbox is made: a folder without it is half-made
run.json    there while the sandbox is up; if its process is gone, the sandbox died
failed      why it could not go on, in words
owner       symlink to the owner's digest, and DATA_DIR/owners/<digest> a symlink back: each made at once or not at all
disk.img or tree/, guest.sock, bundle/config.json, pid, loop

A removed sandbox lies in DATA_DIR/trash/<name>/ (trash.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cubicle.drivers.oci.process import ProcessId
from cubicle.sandbox.driver import OwnerHasSandbox, SandboxError, StartFailed

_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


class BadName(SandboxError):
    """A sandbox's or owner's name is not one."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What a sandbox is made from, for good."""

    image: str
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Run:
    """One time that a sandbox is up."""

    process: ProcessId
    runtime: str
    guest: str


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one sandbox."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def socket(self) -> Path:
        return self.path / "guest.sock"

    @property
    def bundle(self) -> Path:
        return self.path / "bundle"

    @property
    def config(self) -> Path:
        return self.bundle / "config.json"

    def meta(self) -> Meta | None:
        found = _load(self.path / "meta.json")
        return Meta(str(found["image"]), int(found["disk_bytes"])) if found else None

    def save_meta(self, meta: Meta) -> None:
        _save(self.path / "meta.json", asdict(meta))

    def run(self) -> Run | None:
        found = _load(self.path / "run.json")
        if not found:
            return None
        return Run(ProcessId(**found["process"]), str(found["runtime"]), str(found["guest"]))

    def save_run(self, run: Run) -> None:
        _save(self.path / "run.json", asdict(run))

    def forget_run(self) -> None:
        (self.path / "run.json").unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)

    def failure(self) -> str:
        try:
            return (self.path / "failed").read_text()
        except FileNotFoundError:
            return ""

    def save_failure(self, reason: str) -> None:
        if reason:
            (self.path / "failed").write_text(reason)
        else:
            (self.path / "failed").unlink(missing_ok=True)

    def owner(self) -> str | None:
        return _target(self.path / "owner")


@dataclass(frozen=True, slots=True)
class Records:
    """All sandboxes and their owners, under DATA_DIR."""

    root: Path

    @property
    def sandboxes(self) -> Path:
        return self.root / "sandboxes"

    @property
    def owners(self) -> Path:
        return self.root / "owners"

    @property
    def trash(self) -> Path:
        return self.root / "trash"

    def make_folders(self) -> None:
        for folder in (self.root, self.sandboxes, self.owners, self.trash):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def home(self, name: str) -> Home:
        return Home(self.sandboxes / _word(name))

    def homes(self) -> Iterator[Home]:
        for entry in sorted(os.listdir(self.sandboxes)):
            yield Home(self.sandboxes / entry)

    def bind(self, home: Home, owner: str) -> None:
        """Give a sandbox to an owner for good. An owner has one sandbox, a sandbox one owner."""
        if _claim(home.path / "owner", _word(owner)) != owner:
            raise StartFailed("This sandbox belongs to another chat.")
        if _claim(self.owners / owner, home.name) != home.name and not self._claim_from_removed(home, owner):
            (home.path / "owner").unlink()
            raise OwnerHasSandbox(_target(self.owners / owner) or "")

    @contextlib.contextmanager
    def owners_locked(self) -> Iterator[None]:
        """Nobody else takes an owner from a removed sandbox, or moves one from or to the trash."""
        folder = os.open(self.owners, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _claim_from_removed(self, home: Home, owner: str) -> bool:
        """Take an owner whose sandbox is gone; False if it is there."""
        with self.owners_locked():
            link = self.owners / owner
            if link.is_symlink() and os.path.lexists(self.sandboxes / os.readlink(link)):
                return False
            link.unlink(missing_ok=True)
            return _claim(link, home.name) == home.name

    def find(self, owner: str, hint: str) -> str | None:
        """The sandbox that an owner has; `hint` is the name of one that it had."""
        for name in (_target(self.owners / _word(owner)), hint):
            if name and self.home(name).owner() == owner:
                return name
        return None

    def remove(self, home: Home) -> None:
        """Forget a sandbox whose disk is gone; the owner first, so that it can have a new one."""
        owner = home.owner()
        if owner is not None:
            back = self.owners / owner
            if back.is_symlink() and os.readlink(back) == home.name:
                back.unlink()
        shutil.rmtree(home.path, ignore_errors=False)


def _claim(link: Path, target: str) -> str:
    """Make a symlink if there is none; what it points to."""
    try:
        os.symlink(target, link)
    except FileExistsError:
        return os.readlink(link)
    return target


def _target(link: Path) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise BadName("A sandbox's name is 1 to 64 letters, digits, - and _.")
    return text


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _save(path: Path, fields: dict[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(fields))
    os.replace(fresh, path)
