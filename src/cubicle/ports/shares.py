"""Ports that are shared with anybody who has the public link: which, until when. Kept on disk, one record a chat."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cubicle import record
from cubicle.core.chat import BadChatId, Chat
from cubicle.core.signing import PortGrant
from cubicle.log import chat_fields
from cubicle.record import BadRecord, Fields, NewerRecord
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

ALL_TENANTS = "*"
MAX_SHARES = 64
"""Of one chat."""


class NotAllowed(Exception):
    """The operator does not let this tenant share ports."""


@dataclass(frozen=True, slots=True)
class PortShare:
    """One port that is public until then. A port that is shared again has another id: the links before end."""

    id: str
    port: int
    expires: int


class PortShares:
    """Every share of the service. What is acknowledged is on disk."""

    def __init__(self, folder: Path, tenants: Sequence[str] = (), clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._tenants = frozenset(tenants)
        self._clock = clock
        self._shares: dict[Chat, dict[int, PortShare]] = {}
        self._lock = asyncio.Lock()
        self._unsaved: set[Chat] = set()
        """Chats of which the disk still says what was revoked."""
        self._damaged: set[Chat] = set()
        """Chats whose record has shares that cannot be used; a copy of it is made before it is written anew."""
        self._on_end: Callable[[str], None] = lambda share: None

    def when_ended(self, call: Callable[[str], None]) -> None:
        """Call this with the id of each share that ends before its time."""
        self._on_end = call

    def open(self) -> None:
        """Read the records. One that cannot be read is set aside: its ports are private again. Blocks."""
        record.make_folder(self._folder)
        for path in self._folder.glob("*.json"):
            self._load(path)

    def look_again(self, digest: str) -> None:
        """Read what another process wrote of a chat. Blocks."""
        for chat in [chat for chat in self._shares if chat.digest == digest]:
            del self._shares[chat]
        path = self._folder / f"{digest}.json"
        if path.exists():
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            chat, shares, unused = _read(path)
        except NewerRecord as error:
            log.warning("shares of ports are not used: %s", error, extra={"file": path.name})
        except (BadRecord, BadChatId) as error:
            log.warning("shares of ports cannot be read, and were set aside: %s", error, extra={"file": path.name})
            record.keep_bad(path)
        else:
            self._shares[chat] = shares
            if unused:
                self._damaged.add(chat)
                fields = chat_fields(chat) | {"file": path.name}
                log.warning("%d shares of ports cannot be used: these ports are private", unused, extra=fields)

    def allowed(self, tenant: str) -> bool:
        return ALL_TENANTS in self._tenants or tenant in self._tenants

    def of(self, chat: Chat) -> list[PortShare]:
        """The shares that work now."""
        now = self._clock()
        known = self._shares.get(chat, {}).values() if self.allowed(chat.tenant) else ()
        return sorted((share for share in known if now < share.expires), key=lambda share: share.port)

    def holds(self, grant: PortGrant) -> bool:
        """Whether a public token still opens its port."""
        return any(share.id == grant.share and share.port == grant.port for share in self.of(grant.chat))

    async def add(self, chat: Chat, port: int, hours: float) -> PortShare:
        """Share a port. Raises NotAllowed."""
        if not self.allowed(chat.tenant):
            raise NotAllowed("The operator of this service does not allow public links.")
        share = PortShare(secrets.token_hex(8), port, int(self._clock() + hours * 3600))
        async with self._lock:
            kept = {old.port: old for old in self.of(chat)} | {port: share}
            if len(kept) > MAX_SHARES:
                raise NotAllowed(f"A chat may share {MAX_SHARES} ports. End another share first.")
            await _whole(self._add(chat, kept, share))
        return share

    async def revoke(self, chat: Chat, port: int) -> bool:
        """End the share of a port at once, whatever the disk says; whether there was one.

        If it cannot be written down this raises, and the next one who revokes a port of the chat writes it down.
        """
        async with self._lock:
            kept = dict(self._shares.get(chat, {}))
            if kept.pop(port, None) is None and chat not in self._unsaved:
                return False
            await _whole(self._end(chat, kept))
        log.info("a port is private again", extra=chat_fields(chat) | {"port": port})
        return True

    async def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        async with self._lock:
            if chat in self._shares or chat in self._unsaved:
                await _whole(self._end(chat, {}))

    async def _add(self, chat: Chat, kept: dict[int, PortShare], share: PortShare) -> None:
        """Nobody gets in before it is written down."""
        await self._write(chat, kept)
        self._replace(chat, kept)
        log.info("a port was made public", extra=chat_fields(chat) | {"port": share.port, "until": share.expires})

    async def _end(self, chat: Chat, kept: dict[int, PortShare]) -> None:
        """Nobody gets in from now on, and then not after a restart either."""
        self._replace(chat, kept)
        self._unsaved.add(chat)
        await self._write(chat, kept)

    def _replace(self, chat: Chat, shares: dict[int, PortShare]) -> None:
        before = self._shares.pop(chat, {})
        if shares:
            self._shares[chat] = shares
        for ended in {share.id for share in before.values()} - {share.id for share in shares.values()}:
            self._on_end(ended)

    async def _write(self, chat: Chat, shares: dict[int, PortShare]) -> None:
        path = _path(self._folder, chat.digest)
        if chat in self._damaged:
            await asyncio.to_thread(_keep_damaged, path)
            log.warning("shares of ports that cannot be used were set aside", extra=chat_fields(chat))
            self._damaged.discard(chat)
        written = [{"id": share.id, "port": share.port, "expires": share.expires} for share in shares.values()]
        if written:
            fields = {"tenant": chat.tenant, "chat": chat.id, "shares": written}
            await asyncio.to_thread(record.write, path, fields)
        else:
            await asyncio.to_thread(record.remove, path)
        self._unsaved.discard(chat)


def remove_record(folder: Path, digest: str) -> None:
    """Remove the shares of a chat, while no service runs."""
    record.remove(_path(folder, digest))


def _path(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.json"


def _read(path: Path) -> tuple[Chat, dict[int, PortShare], int]:
    """The chat, its shares by port, and how many more the record has that cannot be used."""
    fields = record.read(path)
    chat = Chat(fields.text("chat"), fields.text("tenant"))
    if path.stem != chat.digest:
        raise BadRecord("it is another chat's")
    listed = fields.values.get("shares")
    if not isinstance(listed, list):
        raise BadRecord("shares is not a list")
    found: dict[int, PortShare] = {}
    for one in listed:
        with suppress(BadRecord):
            share = _share(one)
            if share.port not in found and len(found) < MAX_SHARES:
                found[share.port] = share
    return chat, found, len(listed) - len(found)


def _keep_damaged(path: Path) -> None:
    """What it says is kept under another name, before it is written anew."""
    try:
        record.copy_bad(path)
    except FileNotFoundError:
        pass
    except BadRecord:
        record.keep_bad(path)


def _share(written: object) -> PortShare:
    fields = Fields(written if isinstance(written, dict) else {})
    return PortShare(fields.text("id", 16), fields.whole("port", 1, 65535), fields.whole("expires"))


async def _whole(change: Coroutine[None, None, None]) -> None:
    """Await a change to its end, also if the caller is cancelled meanwhile: no thread writes after the lock is free."""
    task = start_task(change, name="write shares")
    cancelled = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001 — raised below
            break
    if cancelled is not None:
        with suppress(Exception):
            task.result()
        raise cancelled
    task.result()
