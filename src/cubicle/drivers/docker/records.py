"""What the driver itself remembers of a sandbox, under DATA_DIR/docker: the rest is the engine's to know."""

from __future__ import annotations

import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from cubicle import durable, record
from cubicle.drivers.common.instance import SharedLock
from cubicle.machine.errors import SandboxError
from cubicle.record import BadRecord
from cubicle.sandbox.trash import TrashNote

log = logging.getLogger(__name__)

_MAX_LENGTH = 4096
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def word(text: str) -> str:
    """A name that may be part of a path and of a container's name. Raises SandboxError."""
    if not _WORD.fullmatch(text):
        raise SandboxError("A sandbox's name is 1 to 64 letters, digits, - and _.")
    return text


@dataclass(frozen=True, slots=True)
class DockerHome:
    """The folder of one sandbox."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def socket_dir(self) -> Path:
        return self.path / "host"

    @property
    def socket(self) -> Path:
        return self.socket_dir / "guest.sock"

    def make(self, first_id: int) -> None:
        """Its folders; the one of the socket belongs to the root user of containers."""
        for folder, mode in ((self.path, 0o711), (self.socket_dir, 0o700)):
            record.make_folder(folder, mode=mode)
        if first_id:
            os.chown(self.socket_dir, first_id, first_id)

    def began(self, guest: str) -> None:
        """It runs, with this guest."""
        record.write_bytes(self.path / "guest", guest.encode())
        record.remove(self.path / "end")

    def ended(self, reason: str) -> None:
        """The driver ends it: on demand (no reason), or for a reason. A disk that does not take that, say for what this
        sandbox has written, keeps nobody from ending it: then the engine says why it is down."""
        if self.path.is_dir():
            try:
                record.write_bytes(self.path / "end", reason.encode("utf-8", "replace")[:_MAX_LENGTH])
            except OSError as error:
                log.warning("why %s is ended (%s) cannot be written down: %s", self.name, reason, error.strerror)

    def bound(self, owner: str) -> None:
        """It is this owner's; written down before the owner uses it, and for good."""
        if self.owner() != owner:
            record.write_bytes(self.path / "owner", owner.encode())

    def owner(self) -> str | None:
        """Whose it is, if anybody's. A copy: the container's name decides, for as long as there is a container."""
        found = _text(self.path / "owner")
        return found if found and _WORD.fullmatch(found) else None

    def is_blank(self) -> bool:
        """Whether it is known that nobody was ever given it."""
        return self.path.is_dir() and not os.path.lexists(self.path / "owner")

    def has_run(self) -> bool:
        """Whether it was ever up, as far as is written down."""
        return os.path.lexists(self.path / "guest")

    @property
    def end(self) -> str | None:
        """Why the driver ended it; None if it did not."""
        return _text(self.path / "end")

    @property
    def guest(self) -> str | None:
        return _text(self.path / "guest")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class DockerRecords:
    """All of them, and who else looks after them: the service, and a command of the command line beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = SharedLock(root / "lock")

    def open(self) -> None:
        # The root user of containers, where it is another than ours, must pass to the folders of the sockets.
        record.make_folder(self.root, mode=0o711)
        self.lock.join()

    def close(self) -> None:
        self.lock.close()

    def passable(self) -> bool:
        """Whether any user of the host passes to the folders of the sockets, as far as the folders above go."""
        return all(folder.stat().st_mode & 0o001 for folder in (self.root, *self.root.parents))

    def keep_seccomp(self, profile: str) -> Path:
        """The profile as a file, for an engine that reads it from one."""
        path = self.root / "seccomp.json"
        record.write_bytes(path, profile.encode(), mode=0o644)
        return path

    def home(self, name: str) -> DockerHome:
        return DockerHome(self.root / "sandboxes" / word(name))

    def keep_note(self, name: str, note: TrashNote) -> None:
        """Write down whose a sandbox was that goes to the trash."""
        record.make_folder(self._notes)
        durable.write(self._notes / word(name), note.to_json())

    def note(self, name: str) -> TrashNote | None:
        try:
            return TrashNote.parse(record.read_bytes(self._notes / word(name)))
        except (OSError, BadRecord):
            return None

    def forget_note(self, name: str) -> None:
        (self._notes / word(name)).unlink(missing_ok=True)

    @property
    def _notes(self) -> Path:
        return self.root / "trash"

    def names(self) -> list[str]:
        folder = self.root / "sandboxes"
        found = sorted(os.listdir(folder)) if folder.exists() else []
        return [name for name in found if _WORD.fullmatch(name)]


def _text(path: Path) -> str | None:
    """What a small file says; None if there is none, and nothing of one that cannot be read."""
    try:
        return record.read_text(path, _MAX_LENGTH)
    except FileNotFoundError:
        return None
    except (OSError, BadRecord) as error:
        log.warning("%s cannot be used: %s", path, error)
        return ""
