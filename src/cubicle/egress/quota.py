"""The egress allowance of every chat, kept on disk: a restart of the service does not forgive what was used."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cubicle import durable, record
from cubicle.core.chat import Chat
from cubicle.egress.meter import DAY, Quota
from cubicle.egress.tally import EgressReport, EgressTally
from cubicle.log import chat_fields
from cubicle.record import BadRecord
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

FOLDER = "allowances"
SAVE_SECONDS = 5.0
"""Between two writes: what a chat sent and received since then is forgotten when the service is killed."""
_VERSION = 1
_MAX_RECORD = 4096
_MAX_BYTES = 2**62
_MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, by two clocks. That of one boot does not jump; between two boots there is only the other."""

    boot: str
    uptime: float
    wall: float

    @classmethod
    def now(cls) -> Moment:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(boot, time.clock_gettime(time.CLOCK_BOOTTIME), time.time())

    def since(self, before: Moment) -> float:
        """Seconds from another moment to this one, never fewer than none."""
        same = self.boot == before.boot
        return max(0.0, self.uptime - before.uptime if same else self.wall - before.wall)


class Quotas:
    """One small file a chat, named by the chat's digest; written when it changes, between `open` and `close`."""

    def __init__(self, folder: Path, *, now: Callable[[], Moment] = Moment.now) -> None:
        self._folder = folder
        self._now = now
        self._kept: dict[str, Quota] = {}
        self._saved: dict[str, int] = {}
        self._chats: dict[str, Chat] = {}
        self._writing = asyncio.Lock()
        self._saving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await asyncio.to_thread(self._prepare)
        self._saving = start_task(self._save_now_and_then(), name="egress allowances")

    async def close(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            with suppress(asyncio.CancelledError):
                await self._saving
        await self.save()

    async def of(self, chat: Chat) -> Quota:
        """The chat's allowance, the same object for all who ask."""
        if len(self._kept) > _MAX_KEPT:
            self._kept = {digest: kept for digest, kept in self._kept.items() if not kept.forgettable}
            self._saved = {digest: size for digest, size in self._saved.items() if digest in self._kept}
            self._chats = {digest: kept for digest, kept in self._chats.items() if digest in self._kept}
        if chat.digest not in self._kept:
            found = await asyncio.to_thread(self._read, chat)
            if chat.digest not in self._kept:
                self._kept[chat.digest] = found
                self._saved[chat.digest] = found.bytes
                self._chats[chat.digest] = chat
        return self._kept[chat.digest]

    def reports(self, most: int) -> list[EgressReport]:
        """What at most so many chats did since they were last reported; the others' is kept for the next time."""
        busy = [digest for digest, kept in self._kept.items() if not kept.tally.is_empty][:most]
        found = [EgressReport(self._chats[digest], self._kept[digest].tally) for digest in busy]
        for digest in busy:
            self._kept[digest].tally = EgressTally()
        return found

    def block(self, tenants: Collection[str], digests: Collection[str]) -> None:
        """Of these tenants and chats nothing more may leave; of all others it may."""
        for digest, kept in self._kept.items():
            kept.blocked = digest in digests or self._chats[digest].tenant in tenants

    async def forget(self, chat: Chat) -> None:
        """Remove all that is known of a chat, which was removed itself."""
        async with self._writing:
            self._kept.pop(chat.digest, None)
            self._saved.pop(chat.digest, None)
            self._chats.pop(chat.digest, None)
            await asyncio.to_thread(remove_record, self._folder, chat.digest)

    async def save(self) -> None:
        """Write those that changed. A disk that takes none is tried again the next time."""
        async with self._writing:
            changed = {digest: kept for digest, kept in self._kept.items() if self._saved.get(digest) != kept.bytes}
            for digest, allowance in changed.items():
                used = allowance.bytes
                try:
                    await asyncio.to_thread(self._write, digest, used, allowance.elapsed)
                except OSError as error:
                    log.error("what chats used of their egress allowance cannot be written: %s", error.strerror)
                    return
                self._saved[digest] = used

    async def _save_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            try:
                await self.save()
            except Exception:
                log.exception("the egress allowances could not be saved")

    def _prepare(self) -> None:
        """Make the folder, and remove the records of days that are over."""
        record.make_folder(self._folder.parent)
        record.make_folder(self._folder)
        for path in self._folder.iterdir():
            with suppress(OSError, ValueError):
                if "." not in path.name and _load(path, self._now())[1] >= DAY:
                    durable.remove(path)

    def _read(self, chat: Chat) -> Quota:
        path = self._folder / chat.digest
        try:
            used, elapsed = _load(path, self._now())
        except FileNotFoundError:
            return Quota()
        except (OSError, ValueError) as error:
            log.error(
                "a record of the egress allowance cannot be read and is set aside: %s", error, extra=chat_fields(chat)
            )
            with suppress(OSError):
                durable.move(path, path.with_name(f"{path.name}.unreadable-{int(time.time())}"))
            return Quota()
        return Quota(used=used, elapsed=elapsed) if elapsed < DAY else Quota()

    def _write(self, digest: str, used: int, elapsed: float) -> None:
        now = self._now()
        fields: dict[str, object] = {"version": _VERSION, "bytes": used, "elapsed": round(elapsed, 3)}
        fields |= {"boot": now.boot, "uptime": round(now.uptime, 3), "time": round(now.wall, 3)}
        record.write_bytes(self._folder / digest, json.dumps(fields).encode())


def remove_record(folder: Path, digest: str) -> None:
    """Also one that was set aside."""
    with suppress(FileNotFoundError, IsADirectoryError):
        durable.remove(folder / digest)
    for path in folder.glob(f"{digest}.unreadable-*"):
        with suppress(OSError):
            durable.remove(path)


def _load(path: Path, now: Moment) -> tuple[int, float]:
    """Bytes used, and seconds of the day that have passed. Raises OSError, ValueError."""
    try:
        fields: Any = record.parsed(record.read_bytes(path, _MAX_RECORD))
        used, elapsed = fields["bytes"], float(fields["elapsed"])
        then = Moment(str(fields["boot"]), float(fields["uptime"]), float(fields["time"]))
    except (KeyError, TypeError, BadRecord):
        raise ValueError("it is not such a record") from None
    numbers = (elapsed, then.uptime, then.wall)
    good = isinstance(used, int) and not isinstance(used, bool) and 0 <= used < _MAX_BYTES
    if not good or not all(map(math.isfinite, numbers)) or elapsed < 0:
        raise ValueError("a number in it cannot be")
    return used, elapsed + now.since(then)
