"""What was asked for under an id of the host's, kept on the sandbox's own disk: it is not done a second time.

A command leaves a line when it begins and one, with the two ends of its output, when it ends. A change of a file leaves
a line before it is made and one when it is. So, when service and sandbox both ended in the middle, three things can be
told apart: it never began, it is done (and how), it stopped on the way.

Nothing is waited for: what is written outlives the guest and the service, and not the loss of power. That is noticed:
the files say in which boot of the machine they were written, and a guest that finds another one takes it that entries
may be missing up to now. That there are records at all is on disk before the first one counts.

The lines are in two files of bounded size that only the guest can open; when one is full, the older one goes.
`forgotten` is the time of the newest entry that went, may be missing, or could not be kept.

    {"id": …, "at": …}                                begun
    {"id": …, "at": …, "exit": {…}, "parts": [[stream, bytes], …], "head": …, "gap": …}, and then the output
    {"id": …, "at": …, "intent": {…}}                 a file is about to be changed
    {"id": …, "at": …, "answer": {…}, "keep": …}      it was changed
    {"id": …, "at": …, "dropped": true}               it was refused before anything was done
    {"forgotten": …, "boot": …}
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Sequence

from .messages import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_SEGMENT = 4 * 1024 * 1024
MAX_LINES = 500
MAX_AGE = 30 * 86_400.0
_MAX_LINE = 64 * 1024
_MAX_PARTS = 64
_NAMES = ("older", "newer")
_ARMED, _TRIPPED = "armed", "tripped"
_encode = json.JSONEncoder(separators=(",", ":"), default=vars).encode

Parts = Sequence[tuple[int, bytes]]


class _Place:
    """Where the last line of an id is."""

    __slots__ = ("at", "generation", "offset", "running")

    def __init__(self, at: float, generation: int, offset: int, running: bool) -> None:
        self.at = at
        self.generation = generation
        self.offset = offset
        self.running = running


class CallRecord:
    """What is known of one id."""

    def __init__(self, line: dict[str, Any], running: bool, output: list[tuple[int, bytes]]) -> None:
        self.running = running
        """Whether this guest began it, and it goes on."""
        self.exit: dict[str, Any] | None = line.get("exit")
        self.intent: dict[str, Any] | None = line.get("intent")
        self.answer: dict[str, Any] | None = line.get("answer")
        self.keep: object = line.get("keep")
        self.head: int = line.get("head", 0)
        self.gap: int = line.get("gap", 0)
        self.output = output


class CallRecords:
    """All ids of the sandbox that are still known. The files are read at the first use, not at the guest's start."""

    def __init__(self, folder: str, boot: str) -> None:
        """`boot`: which start of the machine this is; empty if that cannot be told, and may be another each time."""
        self._folder = folder
        self._boot = boot
        self._boot_before: str | None = None
        self._is_open = self._broken = False
        self._files: list[int] = []  # the newer one is the last
        self._generation = self._size = self._lines = 0
        self._known: dict[str, _Place] = {}
        self.forgotten = 0.0

    def find(self, call_id: str) -> CallRecord | None:
        self._ready()
        place = self._known.get(call_id)
        if place is None:
            return None
        try:
            return self._read(place)
        except (OSError, ValueError, TypeError, KeyError):
            return CallRecord({}, place.running, [])

    def _read(self, place: _Place) -> CallRecord:
        fd = self._files[-1 - (self._generation - place.generation)]
        start = os.pread(fd, _MAX_LINE, place.offset)
        line, at = json.loads(start.partition(b"\n")[0]), place.offset + start.index(b"\n") + 1
        output: list[tuple[int, bytes]] = []
        for stream, length in line.get("parts", ()):
            output.append((int(stream), os.pread(fd, length, at)))
            at += length
        return CallRecord(line, place.running, output)

    def begin(self, call_id: str, intent: dict[str, object] | None = None) -> bool:
        """Note that it begins; whether that could be kept."""
        self._ready()
        line = {} if intent is None else {"intent": intent}
        return self._append(call_id, round(time.time(), 3), line, running=True)

    def finish(self, call_id: str, exit: Message, parts: Parts, head: int, gap: int) -> bool:
        """Note how a command ended and the ends of what it printed, with a gap after the first `head` bytes; whether
        that could be kept."""
        place = self._known.get(call_id)
        if place is None:
            return False
        merged = _merged(parts)
        sizes = [(stream, len(data)) for stream, data in merged]
        line = {"exit": exit.__dict__, "parts": sizes, "head": head, "gap": gap}
        return self._append(call_id, place.at, line, b"".join([data for _, data in merged]))

    def answered(self, call_id: str, answer: Message, keep: str) -> None:
        """Note that a file was changed, what the host is told, and under which id the change was kept."""
        place = self._known.get(call_id)
        if place is not None:
            self._append(call_id, place.at, {"answer": answer.__dict__, "keep": keep})

    def drop(self, call_id: str) -> None:
        """It was refused: nothing was done."""
        place = self._known.get(call_id)
        if place is not None:
            self._append(call_id, place.at, {"dropped": True})
            self._known.pop(call_id, None)

    # ---- the files

    def _append(
        self, call_id: str, at: float, line: dict[str, Any], payload: bytes = b"", *, running: bool = False
    ) -> bool:
        try:
            if self._broken:
                raise OSError
            if self._size > MAX_SEGMENT or self._lines >= MAX_LINES:
                self._turn_over()
            offset = self._write({"id": call_id, "at": at, **line}, payload)
        except OSError:  # of one that began, that is all that is known: it is not begun again
            self._fail()
            return False
        self._known[call_id] = _Place(at, self._generation, offset, running)
        return True

    def _write(self, line: dict[str, Any], payload: bytes = b"") -> int:
        start = _encode(line).encode() + b"\n"
        data = memoryview(start + payload + b"\n" if payload else start)
        offset, size = self._size, len(data)
        try:
            while data:
                data = data[os.write(self._files[-1], data) :]
        except OSError:
            os.ftruncate(self._files[-1], offset)
            raise
        self._size += size
        self._lines += 1
        return offset

    def _fail(self) -> None:
        """Remember, with no room on a full disk, that not everything was kept."""
        self.forgotten = self._now()
        try:
            os.rename(os.path.join(self._folder, _ARMED), os.path.join(self._folder, _TRIPPED))
        except OSError:
            pass

    def _now(self) -> float:
        """The time up to which entries may be missing. The clock may have been set back since one was written."""
        return max([time.time(), self.forgotten, *[place.at for place in self._known.values()]])

    def _turn_over(self) -> None:
        """The newer file becomes the older one, which goes. What still runs is noted again."""
        older, newer = (os.path.join(self._folder, name) for name in _NAMES)
        gone = {key: place for key, place in self._known.items() if place.generation < self._generation}
        again = [(key, place.at, self._read(place).intent) for key, place in gone.items() if place.running]
        self.forgotten = max([self.forgotten, *(place.at for place in gone.values() if not place.running)])
        fresh = _opened(newer + ".new")  # where it cannot be made, all stays as it is, and is tried again
        try:
            os.rename(newer, older)
            os.rename(newer + ".new", newer)
        except OSError:
            os.close(fresh)
            raise
        self._files.append(fresh)
        os.close(self._files.pop(0))
        self._generation += 1
        self._size = self._lines = 0
        for key in gone:
            del self._known[key]
        self._write(self._first_line())
        for key, at, intent in again:
            line: dict[str, Any] = {"id": key, "at": at} if intent is None else {"id": key, "at": at, "intent": intent}
            self._known[key] = _Place(at, self._generation, self._write(line), True)

    def _ready(self) -> None:
        if self._is_open:
            return
        self._is_open = True
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            found = os.lstat(self._folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise PermissionError
            names = set(os.listdir(self._folder))
            lost = bool(names) and not (names.issuperset(_NAMES) and names & {_ARMED, _TRIPPED})
            while not self._load():  # each time one of two is set aside
                lost = True
            self._arm(new=not names, lost=lost)
        except OSError:
            self._broken = True
            self._known.clear()
            self._fail()

    def _first_line(self) -> dict[str, Any]:
        return {"forgotten": self.forgotten, "boot": self._boot}

    def _arm(self, new: bool, lost: bool) -> None:
        """Note whether something is missing. The newer file is never empty but in the middle of its making."""
        names = os.listdir(self._folder)
        rebooted = not self._boot or self._boot_before != self._boot
        if lost or rebooted or not self._size or _TRIPPED in names:
            self.forgotten = 0.0 if new else self._now()
            self._write(self._first_line())
        if _TRIPPED in names:
            os.rename(os.path.join(self._folder, _TRIPPED), os.path.join(self._folder, _ARMED))
        elif _ARMED not in names:
            os.close(os.open(os.path.join(self._folder, _ARMED), os.O_CREAT | os.O_CLOEXEC, 0o600))
        if new:
            self._put_on_disk()

    def _put_on_disk(self) -> None:
        """Once in the life of a sandbox: without the files it would look as if nothing had ever been done."""
        for fd in self._files:
            os.fsync(fd)
        for folder in (self._folder, os.path.dirname(self._folder)):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _load(self) -> bool:
        """Take in both files; False when one was damaged, and set aside: it is then as if nothing had been in it."""
        self._known, self._generation = {}, 0
        while self._files:
            os.close(self._files.pop())
        for generation, name in enumerate(_NAMES):
            path = os.path.join(self._folder, name)
            self._files.append(_opened(path))
            self._generation = generation
            if not self._take_all(self._files[-1]):
                os.rename(path, "%s.%d.bad" % (path, time.time_ns()))
                return False
        oldest = time.time() - MAX_AGE
        for key in [key for key, place in self._known.items() if place.at < oldest]:
            del self._known[key]
            self.forgotten = max(self.forgotten, oldest)
        return True

    def _take_all(self, fd: int) -> bool:
        offset, size = 0, os.fstat(fd).st_size
        self._lines, self._size = 0, size
        if size > 2 * MAX_SEGMENT:
            return False
        while offset < size:
            line, newline, _ = os.pread(fd, _MAX_LINE, offset).partition(b"\n")
            try:
                if not newline:
                    return False
                length = self._take(json.loads(line), offset)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                return False
            self._lines += 1
            offset += len(line) + 1 + (length + 1 if length else 0)
        return offset == size

    def _take(self, line: dict[str, Any], offset: int) -> int:
        """One line; how many bytes of output follow it."""
        if "forgotten" in line:
            self.forgotten = max(self.forgotten, float(line["forgotten"]))
            self._boot_before = str(line.get("boot"))
            return 0
        if line.get("dropped"):
            self._known.pop(line["id"], None)
            return 0
        self._known[line["id"]] = _Place(float(line["at"]), self._generation, offset, False)
        return sum(length for _, length in line.get("parts", ()))


def read_boot() -> str:
    """Which start of the machine this is; empty where nobody says so (gVisor)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""


def _merged(parts: Parts) -> list[tuple[int, bytes]]:
    """The same output in few parts."""
    runs: list[tuple[int, list[bytes]]] = []
    for stream, data in parts:
        if runs and (runs[-1][0] == stream or len(runs) == _MAX_PARTS):
            runs[-1][1].append(data)
        else:
            runs.append((stream, [data]))
    return [(stream, b"".join(pieces)) for stream, pieces in runs]


def _opened(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
