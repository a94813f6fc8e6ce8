"""The pictures of browsers that the replays show: a folder a chat, on the service's own disk, bounded.

They go with the chat, and with the entries of its journal beside which they stand. A picture that is lost with the
power is no loss to anybody: nothing here waits for the disk. Everything here blocks, unless it says otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cubicle.browser.frame_file import (
    MAX_HEADER,
    MAX_PICTURE,
    BadFrame,
    FrameFacts,
    FrameName,
    pack,
    unpack_facts,
    unpack_picture,
)
from cubicle.core.chat import Chat
from cubicle.journal.anchor import DIGEST

log = logging.getLogger(__name__)

_PART = 8
"""At a bound an eighth of a chat's pictures goes, the oldest first."""
_CLUSTER = 4096
_CARELESS_MS = 2000
"""A picture and the entry beside it are not of the same instant."""


@dataclass(frozen=True, slots=True)
class KeptFrame:
    name: FrameName
    facts: FrameFacts


class FrameStore:
    """`limit`: bytes of one chat, `total` of all; 0 of either: nothing is kept."""

    def __init__(self, folder: Path, *, limit: int, total: int) -> None:
        self._folder = folder
        self._limit = min(limit, total)
        self._total = total
        self._sizes: dict[str, int] = {}
        self._newest: dict[str, FrameName] = {}
        self._admitted: set[str] = set()
        """Chats with a sandbox: what comes late of one that was removed is not kept."""
        self._uncounted: set[str] = set()
        """Chats whose sandbox has just been connected: another process may have had them meanwhile."""
        self._lock = threading.Lock()
        self._refused = False

    @property
    def keeps(self) -> bool:
        """Whether anything is kept."""
        return self._limit > 0

    def open(self) -> None:
        """Find out what there is, and hold to the bounds, which may be others than last time."""
        if not self.keeps and not self._folder.exists():
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock:
            for name in os.listdir(self._folder):
                if DIGEST.fullmatch(name):
                    self._clear_unfinished(name)
                    found = self._listed(name)
                    self._sizes[name] = sum(size for _, size in found)
                    if found:
                        self._newest[name] = found[-1][0]
            for digest in list(self._sizes):
                self._hold_to_limit(digest)
            self._hold_to_total()

    def admit(self, chat: Chat) -> None:
        """The chat has a sandbox from now on, until it is removed."""
        self._admitted.add(chat.digest)
        self._uncounted.add(chat.digest)

    def add(self, chat: Chat, at: float, facts: FrameFacts, picture: bytes) -> FrameName | None:
        """Keep a picture; None if it is none, or if the disk refuses it."""
        if not self.keeps:
            return None
        try:
            name, content = pack(at, facts, picture)
        except BadFrame:
            return None
        with self._lock:
            if chat.digest not in self._admitted:
                return None
            try:
                self._write(self._folder / chat.digest, str(name), content)
            except OSError as error:
                if not self._refused:
                    log.warning("pictures of browsers are not kept: %s", error.strerror)
                self._refused = True
                return None
            self._refused = False
            if chat.digest in self._uncounted:
                self._uncounted.discard(chat.digest)
                self._sizes[chat.digest] = sum(size for _, size in self._listed(chat.digest))
            else:
                self._sizes[chat.digest] = self._sizes.get(chat.digest, 0) + _on_disk(len(content))
            self._newest[chat.digest] = name
            self._hold_to_limit(chat.digest)
            self._hold_to_total()
        return name

    def listed(self, chat: Chat, *, since: float = 0.0, limit: int = 10_000) -> list[KeptFrame]:
        """The pictures that were taken after this time, the oldest first."""
        found = []
        for name, _ in self._listed(chat.digest):
            if name.at > since * 1000:
                try:
                    found.append(KeptFrame(name, unpack_facts(self._read(chat, name, MAX_HEADER))))
                except (BadFrame, OSError):
                    continue
            if len(found) >= limit:
                break
        return found

    def newest(self, chat: Chat) -> FrameName | None:
        """Does not block."""
        return self._newest.get(chat.digest)

    def picture(self, chat: Chat, name: FrameName) -> bytes | None:
        """The JPEG; None if it is not kept, or is not what it was."""
        try:
            return unpack_picture(name, self._read(chat, name, MAX_HEADER + MAX_PICTURE))
        except (BadFrame, OSError):
            return None

    def forget(self, chat: Chat) -> None:
        """The chat is removed, and its pictures with it."""
        self.drop(chat.digest)

    def drop(self, digest: str) -> None:
        with self._lock:
            self._admitted.discard(digest)
            self._uncounted.discard(digest)
            self._sizes.pop(digest, None)
            self._newest.pop(digest, None)
            remove_frames(self._folder, digest)

    def sweep(self, oldest: Callable[[str], float | None]) -> None:
        """Drop what stands beside no entry of a journal any more: `oldest` says for a chat's digest when its first
        entry was written; None: there is none. Where it raises OSError, nothing goes."""
        for digest in list(self._sizes):
            try:
                since = oldest(digest)
            except OSError:
                continue
            with self._lock:
                for name, size in self._listed(digest):
                    if since is not None and name.at >= since * 1000 - _CARELESS_MS:
                        break
                    self._remove(digest, name, size)

    # ---- files

    def _listed(self, digest: str) -> list[tuple[FrameName, int]]:
        """Names and sizes, the oldest first."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self._folder / digest) as entries:
            for entry in entries:
                name = FrameName.of(entry.name)
                if name is not None:
                    with contextlib.suppress(OSError):
                        found.append((name, _on_disk(entry.stat(follow_symlinks=False).st_size)))
        return sorted(found, key=lambda pair: (pair[0].at, pair[0].digest))

    def _read(self, chat: Chat, name: FrameName, most: int) -> bytes:
        with open(self._folder / chat.digest / str(name), "rb") as file:
            return file.read(most)

    def _write(self, folder: Path, name: str, content: bytes) -> None:
        """Under a name of its own first: what is cut off by the end of the service is no picture."""
        folder.mkdir(mode=0o700, exist_ok=True)
        fresh = folder / f"{name}.new"
        try:
            fresh.write_bytes(content)
            fresh.chmod(0o600)
            os.replace(fresh, folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise

    def _clear_unfinished(self, digest: str) -> None:
        for path in (self._folder / digest).glob("*.frame.new"):
            with contextlib.suppress(OSError):
                path.unlink()

    def _hold_to_limit(self, digest: str) -> None:
        if self._sizes.get(digest, 0) > self._limit:
            self._thin(digest)

    def _hold_to_total(self) -> None:
        """Whoever has the most gives up the oldest."""
        while self._sizes and sum(self._sizes.values()) > self._total:
            largest = max(self._sizes, key=lambda digest: self._sizes[digest])
            before = self._sizes[largest]
            self._thin(largest)
            if self._sizes.get(largest, 0) >= before:
                return  # the disk does not let go of it

    def _thin(self, digest: str) -> None:
        names = self._listed(digest)
        self._sizes[digest] = sum(size for _, size in names)
        least = len(names) // _PART + 1
        for place, (name, size) in enumerate(names):
            if place >= least and self._sizes[digest] <= self._limit:
                break
            self._remove(digest, name, size)

    def _remove(self, digest: str, name: FrameName, size: int) -> None:
        with contextlib.suppress(OSError):
            (self._folder / digest / str(name)).unlink(missing_ok=True)
            self._sizes[digest] = max(0, self._sizes.get(digest, 0) - size)
            if self._newest.get(digest) == name:  # the oldest go first: there is none left
                del self._newest[digest]


def remove_frames(folder: Path, digest: str) -> None:
    """Remove the pictures of a chat that was removed."""
    if DIGEST.fullmatch(digest):
        shutil.rmtree(folder / digest, ignore_errors=True)


def _on_disk(size: int) -> int:
    return -(-size // _CLUSTER) * _CLUSTER
