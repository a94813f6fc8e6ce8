"""The thread that writes every journal: takes a batch of all chats, writes it, puts it on disk, and takes the next."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from cubicle import record
from cubicle.journal import format
from cubicle.journal.chat_files import ChatFiles
from cubicle.journal.format import GAP

log = logging.getLogger(__name__)

_MAX_OPEN = 256
"""Chats whose segment stays open."""
_MAX_CLOSED = 4_096
"""Chats besides whose journal was checked: it is opened again by its last line."""
_FAILED = "The journal could not be written"
_RETRY_SECONDS = 1.0
"""A chat whose journal could not be written is not tried again before this."""


class Add(NamedTuple):
    number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Entries that were not kept before they came here."""

    last: int
    why: str = "The disk was too slow"


@dataclass(frozen=True, slots=True)
class AddBlob:
    digest: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Prune:
    """Segments that are too old: up to this one, if it still has this size."""

    segment: int
    size: int


@dataclass(frozen=True, slots=True)
class Forget:
    pass


@dataclass(frozen=True, slots=True)
class Release:
    """Nothing more is expected for this chat."""


Operation = Add | Lost | AddBlob | Prune | Forget | Release


@dataclass(slots=True)
class Work:
    """What is to be done for one chat, in its order. Once it is handed over, it is the thread's."""

    chat: str
    """Its digest."""
    operations: list[Operation]
    sync: bool


@dataclass(slots=True)
class _Kept:
    files: ChatFiles
    usable: bool = False
    checked: bool = False
    """It was whole when it was closed."""
    lost: int = 0
    """The last entry that was not kept; 0 if all were."""
    retry: float = 0.0
    why: str = ""


@dataclass(slots=True)
class Writer:
    """Owns the thread and the open files."""

    folder: Path
    limit: int
    tell: Callable[[Sequence[bool]], None]
    """Called in the thread when something is done, in the order in which it was handed over: whether all is kept."""
    _queue: SimpleQueue[Work | None] = field(default_factory=SimpleQueue)
    _chats: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)
    _closed: OrderedDict[str, ChatFiles] = field(default_factory=OrderedDict)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        self._queue.put(work)

    def stop(self, timeout: float) -> None:
        """End the thread after what it was given. Blocks."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while self._work_off(self._take()):
            pass
        for kept in self._chats.values():
            kept.files.close()

    def _work_off(self, batch: Sequence[Work]) -> bool:
        """Write all of it; whether there was anything. Nothing of it is kept while the thread waits for the next."""
        works: dict[str, Work] = {}
        for work in batch:
            if (first := works.setdefault(work.chat, work)) is not work:
                first.operations += work.operations
                first.sync = first.sync or work.sync
        done = {chat: self._safely(self._write, work) for chat, work in works.items()}
        done = {chat: kept and self._safely(self._sync, works[chat]) for chat, kept in done.items()}
        if batch:
            self.tell([done[work.chat] for work in batch])
        return bool(batch)

    def _take(self) -> list[Work]:
        """All that was handed over while the thread was at work: one batch. Empty at the end."""
        batch: list[Work] = []
        work = self._queue.get()
        with contextlib.suppress(Empty):
            while work is not None:
                batch.append(work)
                work = self._queue.get_nowait()
            self._queue.put(None)  # the end comes after this batch
        return batch

    def _safely(self, step: Callable[[Work], bool], work: Work) -> bool:
        """Whatever one chat's journal meets, those of the others go on."""
        try:
            return step(work)
        except Exception:
            log.exception("a journal could not be written", extra={"folder": work.chat})
            return False

    def _write(self, work: Work) -> bool:
        if not work.operations and work.chat not in self._chats:
            return True  # it was released, and is on disk
        kept = self._kept(work.chat)
        failure: OSError | None = None
        try:
            if kept.usable or self._open(kept):
                self._apply(work)
                return True
        except OSError as error:
            failure = error
        except Exception:
            log.exception("a journal could not be written", extra={"folder": work.chat})
            failure = OSError(0, "the log says why")
        kept = self._chats.get(work.chat, kept)  # another one where it was released on the way
        if failure is not None:
            self._failed(kept, failure)
        numbers = [each.number for each in work.operations if isinstance(each, Add)]
        numbers += [each.last for each in work.operations if isinstance(each, Lost)]
        kept.lost = max([kept.lost, *numbers])
        if any(isinstance(each, Forget) for each in work.operations):
            self._forget(work.chat)
        return False

    def _sync(self, work: Work) -> bool:
        kept = self._chats.get(work.chat)
        if not work.sync or kept is None:
            return True
        if not kept.usable:
            return False  # it had to make room for others of the batch, and could not be put on disk
        try:
            kept.files.sync()
        except OSError as error:
            kept.lost = max(kept.lost, kept.files.number)
            self._failed(kept, error)
            return False
        return True

    def _kept(self, chat: str) -> _Kept:
        kept = self._chats.get(chat)
        if kept is None:
            files = self._closed.pop(chat, None)
            kept = _Kept(files or ChatFiles(self.folder / chat, self.limit), checked=files is not None)
            self._chats[chat] = kept
            for _ in range(len(self._chats) - _MAX_OPEN):
                self._make_room()
        self._chats.move_to_end(chat)
        return kept

    def _make_room(self) -> None:
        """Close the one that was used longest ago; one that cannot be put on disk stays, to say so."""
        chat, oldest = self._chats.popitem(last=False)
        try:
            oldest.files.sync()
        except OSError as error:
            oldest.lost = max(oldest.lost, oldest.files.number)
            self._failed(oldest, error)
            self._chats[chat] = oldest
        else:
            oldest.files.close()
            if oldest.usable:
                self._closed[chat] = oldest.files
                if len(self._closed) > _MAX_CLOSED:
                    self._closed.popitem(last=False)

    def _open(self, kept: _Kept) -> bool:
        """Open a journal; whether it can be used."""
        if time.monotonic() < kept.retry:
            return False
        checked, kept.checked = kept.checked, False
        if checked:
            kept.files.reopen()
        else:
            kept.files.open()
        kept.usable = True
        return True

    def _append(self, chat: str, bodies: Sequence[tuple[int | None, bytes]], *, sync: bool) -> None:
        """Append entries; what was lost before is noted with them."""
        kept = self._kept(chat)
        if not kept.usable:
            self._open(kept)
        first, last = kept.files.number + 1, kept.lost
        if last >= first:
            note = format.gap(f"{kept.why or _FAILED}: these entries are missing.", first, last)
            bodies = [(last, format.body(time.time(), GAP, note)), *bodies]
        kept.files.append(bodies, sync=sync)
        if kept.why.startswith(_FAILED):
            log.info("a journal can be written again", extra={"folder": chat})
        kept.lost, kept.why = 0, ""

    def _failed(self, kept: _Kept, error: OSError) -> None:
        why = f"{_FAILED} ({error.strerror})"
        if kept.why != why:
            log.error("a journal cannot be written: %s", error.strerror, extra={"folder": kept.files.folder.name})
        kept.usable, kept.why, kept.retry = False, why, time.monotonic() + _RETRY_SECONDS
        kept.files.close()

    def _apply(self, work: Work) -> None:
        chat = work.chat
        bodies: list[tuple[int | None, bytes]] = []
        for operation in work.operations:
            if isinstance(operation, Add):
                bodies.append((operation.number, operation.body))
                continue
            if bodies:
                self._append(chat, bodies, sync=False)
                bodies = []
            match operation:
                case AddBlob(digest, data):
                    self._usable(chat).files.keep_blob(digest, data)
                case Lost(last, why):
                    kept = self._usable(chat)
                    kept.lost, kept.why = last, why
                    self._append(chat, (), sync=work.sync)
                case Prune(segment, size):
                    self._usable(chat).files.prune(segment, size)
                case Release():
                    self._release(chat)
                case Forget():
                    self._forget(chat)
        if bodies:
            self._append(chat, bodies, sync=work.sync)

    def _usable(self, chat: str) -> _Kept:
        kept = self._kept(chat)
        if not kept.usable:
            self._open(kept)
        return kept

    def _release(self, chat: str) -> None:
        kept = self._chats.pop(chat, None)
        self._closed.pop(chat, None)
        if kept is not None:
            kept.files.sync()
            kept.files.close()

    def _forget(self, chat: str) -> None:
        """Remove everything of a chat: it is gone for good."""
        kept = self._chats.pop(chat, None)
        self._closed.pop(chat, None)
        if kept is not None:
            kept.files.close()
        try:
            remove_record(self.folder, chat)
        except OSError as error:  # a damaged folder, say: the journals of others go on
            log.error("a removed chat's journal could not be removed: %s", error.strerror, extra={"folder": chat})


def remove_record(folder: Path, digest: str) -> None:
    """Remove a chat's journal, if there is one. Blocks."""
    path = folder / digest
    if path.is_symlink() or path.is_file():
        record.remove(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            log.error("a removed chat's journal could not be removed", extra={"folder": digest})
