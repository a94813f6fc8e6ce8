"""What the driver keeps about a sandbox on disk, in DATA_DIR/sandboxes/<name>/.

meta.json   what it is made from; written once, before the folder has its name
run.json    there while the sandbox is up; if its process is gone, the sandbox died
failed      why it could not go on, in words
owner       symlink to the owner's digest: a copy of the link below, for whoever finds the folder alone
disk.img or tree/, guest.sock, bundle/config.json, pid, loop

DATA_DIR/making/<name>/    a sandbox that is being made; it moves to the others when it is whole and on disk
DATA_DIR/owners/<digest>   symlink to the name of the owner's sandbox. This link alone decides whose a sandbox is: it is
                           made in one step, and is on disk before anybody uses the sandbox. So what is in `making`, or
                           has no owner, has never held anything of a person.
A removed sandbox lies in DATA_DIR/trash/<name>/ (trash.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cubicle import durable, record
from cubicle.drivers.oci.process import ProcessId
from cubicle.machine.errors import OwnedByAnother, OwnerHasSandbox, SandboxError
from cubicle.record import BadRecord
from cubicle.sandbox.lost_found import LostFound

log = logging.getLogger(__name__)

_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_REASON = 4096
_MAX_DISK = 1 << 60
_LOCK_SECONDS = 10.0


class BadName(SandboxError):
    """A sandbox's or owner's name is not one."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What a sandbox is made from, for good."""

    image: str
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class OciRun:
    """One time that a sandbox is up."""

    process: ProcessId
    runtime: str
    guest: str
    first_id: int = 0
    """The host's id of its id 0; 0 if an older version started it."""


@dataclass(frozen=True, slots=True)
class OciHome:
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

    @property
    def pid_file(self) -> Path:
        return self.path / "pid"

    def meta(self) -> Meta:
        """Raises FileNotFoundError, BadRecord, or OSError if that is not the record's fault."""
        found = record.read(self.path / "meta.json")
        return Meta(found.text("image", 200), found.whole("disk_bytes", 1, _MAX_DISK))

    def save_meta(self, meta: Meta) -> None:
        record.write(self.path / "meta.json", asdict(meta))

    def run(self) -> OciRun | None:
        """How it is up, if it is; a record that cannot be read counts as none (`has_run` tells the two apart)."""
        try:
            found = record.read(self.path / "run.json")
            process = found.fields("process")
            known = ProcessId(process.whole("pid", 1, 2**31), process.whole("started"), process.text("boot", 100))
            first_id = found.whole("first_id", 0, 2**32) if "first_id" in found.values else 0
            return OciRun(known, found.text("runtime", 4096), found.text("guest", 200), first_id)
        except FileNotFoundError:
            return None
        except BadRecord as error:
            log.warning("run.json of sandbox %s cannot be used: %s", self.name, error)
            return None

    def has_run(self) -> bool:
        """Whether there is a record of a run, readable or not."""
        return os.path.lexists(self.path / "run.json")

    def save_run(self, run: OciRun) -> None:
        record.write(self.path / "run.json", asdict(run))

    def forget_run(self) -> None:
        record.remove(self.path / "run.json")
        record.remove(self.socket)

    def failure(self) -> str:
        try:
            return record.read_text(self.path / "failed", _MAX_REASON)
        except (FileNotFoundError, BadRecord):
            return ""

    def save_failure(self, reason: str) -> None:
        path = self.path / "failed"
        if reason:
            record.write_bytes(path, reason.encode("utf-8", "replace")[:_MAX_REASON])
        elif os.path.lexists(path):
            record.remove(path)

    def owner(self) -> str | None:
        """Whose it is by its own copy of the link; None without one, or if that is no owner's name."""
        return _target(self.path / "owner")

    def has_disk(self) -> bool:
        return (self.path / "disk.img").is_file() or (self.path / "tree").is_dir()

    def last_use(self) -> float:
        """When it was written to or started last, as far as its files tell."""
        times = [0.0]
        for name in ("disk.img", "tree/guest.log", "run.json", "pid"):
            with contextlib.suppress(OSError):
                times.append((self.path / name).lstat().st_mtime)
        return max(times)


@dataclass(frozen=True, slots=True)
class OciRecords:
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

    @property
    def making(self) -> Path:
        return self.root / "making"

    @property
    def lost(self) -> LostFound:
        return LostFound(self.root)

    def make_folders(self) -> None:
        for folder in (self.root, self.sandboxes, self.owners, self.making, self.trash):
            record.make_root(folder)

    def home(self, name: str) -> OciHome:
        return OciHome(self.sandboxes / _word(name))

    def draft(self, name: str) -> OciHome:
        """Where a sandbox is made; empty."""
        self.discard_draft(name)
        draft = OciHome(self.making / _word(name))
        draft.path.mkdir(mode=0o700)
        return draft

    def discard_draft(self, name: str) -> None:
        """Remove what is left of a sandbox that was not made to its end: nobody was ever given it."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.making / _word(name))

    def publish(self, draft: OciHome) -> OciHome:
        """Give a sandbox that is whole its place among the others."""
        durable.sync_folder(draft.path)
        home = self.home(draft.name)
        durable.move(draft.path, home.path)
        return home

    def homes(self) -> Iterator[OciHome]:
        """Every folder that can be a sandbox's; anything else in there is not the driver's."""
        for entry in sorted(os.listdir(self.sandboxes)):
            path = self.sandboxes / entry
            if _WORD.fullmatch(entry) and _is_folder(path):
                yield OciHome(path)

    def links(self) -> dict[str, str]:
        """Sandbox by owner, of every owner's link that can be read."""
        names = (owner for owner in sorted(os.listdir(self.owners)) if _WORD.fullmatch(owner))
        return {owner: name for owner in names if (name := _target(self.owners / owner)) is not None}

    def link(self, owner: str) -> str | None:
        """The sandbox that an owner's link names."""
        return _target(self.owners / _word(owner))

    def owned(self) -> dict[str, str]:
        """Owner by sandbox."""
        return {name: owner for owner, name in self.links().items()}

    def owner_of(self, home: OciHome, owned: dict[str, str] | None = None) -> str | None:
        """Whose a sandbox is. Its own copy of the link counts where the owner has no link at all.

        Raises BadRecord if it is not known: a link is damaged, or the owner's own link leads to another sandbox.
        """
        copy = home.owner()
        if owned is not None and home.name in owned:
            return owned[home.name]
        if copy is None:
            if os.path.lexists(home.path / "owner"):
                raise BadRecord("its owner cannot be read")
            return None
        if os.path.lexists(self.owners / copy) and _target(self.owners / copy) not in (home.name, None):
            raise BadRecord("its owner has another sandbox")
        return copy

    def is_blank(self, home: OciHome) -> bool:
        """Whether a sandbox is known to be nobody's."""
        try:
            return self.owner_of(home, self.owned()) is None
        except BadRecord:
            return False

    def bind(self, home: OciHome, owner: str) -> None:
        """Give a sandbox to an owner for good. An owner has one sandbox, a sandbox one owner."""
        link = self.owners / _word(owner)
        if home.owner() not in (None, owner) and _target(link) != home.name:
            raise OwnedByAnother
        if os.path.lexists(link) and _target(link) is None:
            self.lost.set_aside(link, "it is no link to a sandbox")
        name = durable.link(link, home.name)
        if name != home.name and not self._claim_from_removed(home, owner):
            raise OwnerHasSandbox(name)
        self._copy_owner(home, owner)

    @contextlib.contextmanager
    def owners_locked(self) -> Iterator[None]:
        """Nobody else takes an owner from a removed sandbox, or moves one from or to the trash. It is held for moments:
        who holds it for long is stopped or ill, and holds up others no longer than that. Raises SandboxError."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(durable.locked_folder(self.owners, _LOCK_SECONDS))
            except TimeoutError as error:
                raise SandboxError(f"The sandboxes of this host cannot be changed. {error}") from None
            yield

    def _claim_from_removed(self, home: OciHome, owner: str) -> bool:
        """Take an owner whose sandbox is gone; False if it is there."""
        with self.owners_locked():
            name = _target(self.owners / owner)
            if name is not None and os.path.lexists(self.sandboxes / name):
                return name == home.name
            durable.relink(self.owners / owner, home.name)
            return True

    def find(self, owner: str, hint: str) -> str | None:
        """The sandbox that an owner has; `hint` is the name of one that it had."""
        name = _target(self.owners / _word(owner))
        if name is not None and _is_folder(self.sandboxes / name):
            return name
        return hint if hint and self.home(hint).owner() == owner else None

    def _copy_owner(self, home: OciHome, owner: str) -> None:
        """Note the owner in the sandbox's folder too; where that fails, the next start of the service does it."""
        if home.owner() == owner:
            return
        try:
            if os.path.lexists(home.path / "owner"):
                record.keep_bad(home.path / "owner")
            durable.link(home.path / "owner", owner)
        except OSError as error:
            log.warning("the owner of sandbox %s could not be noted in its folder: %s", home.name, error.strerror)

    def remove(self, home: OciHome) -> None:
        """Forget a sandbox whose disk is gone; the owner first, so that it can have a new one."""
        owner = home.owner() or self.owned().get(home.name)
        if owner is not None and _target(self.owners / owner) == home.name:
            durable.remove(self.owners / owner)
        shutil.rmtree(home.path, ignore_errors=False)
        durable.sync_folder(self.sandboxes)


def _target(link: Path) -> str | None:
    """What a symlink says, if it is a name such as ours."""
    try:
        target = os.readlink(link)
    except OSError:
        return None
    return target if _WORD.fullmatch(target) else None


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise BadName("A sandbox's name is 1 to 64 letters, digits, - and _.")
    return text
