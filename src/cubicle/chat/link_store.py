"""Which links were made by hand and which were revoked: one record a chat, shared with `cubicle links`.

A service that runs sees within a second what the command line changes: it looks at the time of one file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cubicle import durable, record
from cubicle.core.chat import BadChatId, Chat
from cubicle.core.identity import LinkAccess
from cubicle.core.link_scope import MAX_SCOPE, NOTHING, WHOLE, BadScope, LinkScope, Opens
from cubicle.core.signing import DAY, Mark
from cubicle.record import BadRecord, Fields, NewerRecord
from cubicle.tasks import repeated

log = logging.getLogger(__name__)

MAX_LINKS = 100
"""Of one chat."""
MAX_LABEL = 200
LOOK_SECONDS = 1.0
_STAMP = "changed"
_USED = "used"


class TooManyLinks(Exception):
    """The chat has as many links as it may have."""


@dataclass(frozen=True, slots=True)
class MadeLink:
    """A link that somebody made, without its signature."""

    id: str
    access: LinkAccess
    label: str
    created: int
    expires: int
    opens: str = Opens.CHAT.value
    path: str = ""

    @property
    def scope(self) -> LinkScope:
        return LinkScope(Opens(self.opens), self.path)


@dataclass(frozen=True, slots=True)
class ChatLinks:
    """What is known of a chat's links."""

    chat: Chat | None = None
    """None once the chat is removed: then only the epoch is kept."""
    epoch: int = 0
    links: tuple[MadeLink, ...] = ()


class LinkStore:
    """Every record of the service. What is acknowledged is on disk. Without a folder it is in memory only."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._records: dict[str, ChatLinks] = {}
        self._stamp: int | None = None
        self.version = 0
        """Changes when a link is revoked."""

    def open(self) -> None:
        """Read the records for the first time. Blocks."""
        if self._folder is not None:
            record.make_folder(self._folder)
            self._read_all(self._folder)

    def _read_again(self) -> None:
        assert self._folder is not None
        with self._locked():  # what this process changes meanwhile would be put back to what was read before
            self._read_all(self._folder)

    def _read_all(self, folder: Path) -> None:
        stamp = self._stamped()
        found: dict[str, ChatLinks] = {}
        for path in folder.glob("*.json"):
            if (links := self._read(path)) is not None:
                found[path.stem] = links
        self._records, self._stamp = found, stamp
        self.version += 1

    def mark(self, chat: Chat, id: str = "") -> Mark:
        """What a link of the chat that is made now carries."""
        return Mark(self.of(chat).epoch, id)

    def holds(self, chat: Chat, mark: Mark) -> bool:
        """Whether a link with this mark was not revoked."""
        known = self.of(chat)
        return mark.epoch == known.epoch and (not mark.id or any(link.id == mark.id for link in known.links))

    def of(self, chat: Chat) -> ChatLinks:
        return self._records.get(chat.digest, _NONE)

    def listed(self) -> list[ChatLinks]:
        """The chats that have links of their own, or revoked ones."""
        known = [links for links in self._records.values() if links.chat is not None]
        return sorted(known, key=lambda links: (links.chat.tenant, links.chat.id) if links.chat else ("", ""))

    def scope(self, chat: Chat, mark: Mark) -> LinkScope:
        """What a link with this mark, which holds, opens of the chat."""
        if not mark.id:
            return WHOLE
        # It may have been revoked a moment ago, by another thread.
        return next((link.scope for link in self.of(chat).links if link.id == mark.id), NOTHING)

    def add(self, chat: Chat, access: LinkAccess, label: str, expires: int, scope: LinkScope = WHOLE) -> MadeLink:
        """Blocks. Raises TooManyLinks."""
        now = self._clock()
        made = MadeLink(
            secrets.token_hex(8), access, label[:MAX_LABEL], int(now), expires, scope.opens.value, scope.path
        )
        with self._changing(chat) as known:
            kept = [link for link in known.links if link.expires > now]
            if len(kept) >= MAX_LINKS:
                raise TooManyLinks(f"A chat has at most {MAX_LINKS} links. Revoke another one first.")
            self._write(replace(known, chat=chat, links=(*kept, made)), chat)
        return made

    def revoke(self, chat: Chat, id: str) -> bool:
        """End one link, at once; whether there was one. Blocks."""
        with self._changing(chat) as known:
            kept = tuple(link for link in known.links if link.id != id)
            if len(kept) == len(known.links):
                return False
            self._write(replace(known, chat=chat, links=kept), chat)
        return True

    def revoke_all(self, chat: Chat) -> None:
        """End every link of the chat, those of its prompts and of its private ports too. Blocks."""
        with self._changing(chat) as known:
            self._write(ChatLinks(chat, max(known.epoch + 1, int(self._clock()))), chat)

    async def forget(self, chat: Chat) -> None:
        """The chat is removed. That its links were revoked is kept: they must not open a chat of the same name."""
        if chat.digest in self._records or await asyncio.to_thread(self._is_kept, chat.digest):
            await asyncio.to_thread(self.drop, chat.digest)

    def _is_kept(self, digest: str) -> bool:
        """Whether there is a record; another process may have made one that was not looked at yet."""
        return self._folder is not None and (self._folder / f"{digest}.json").exists()

    def drop(self, digest: str) -> None:
        """The same by the name of the record, on a full disk too. Blocks."""
        if digest not in self._records and not self._is_kept(digest):
            return
        with self._locked():
            known = self._fresh(digest)
            if known.epoch:
                self._put(digest, ChatLinks(None, known.epoch))
            else:
                self._records.pop(digest, None)
                if self._folder is not None:
                    record.remove(self._folder / f"{digest}.json")
                with contextlib.suppress(OSError):  # a service that runs hears of the chat's end too
                    self._touch()

    def use_once(self, id: str, expires: int) -> bool:
        """Whether this is the first use of a one-time token. On disk before it is answered. Blocks."""
        if self._folder is None:
            raise RuntimeError("one-time links need a folder")
        used = self._folder / _USED
        record.make_folder(used)
        mine = secrets.token_hex(16)
        first = durable.write_once(used / id, f"{expires} {mine}".encode()) == f"{expires} {mine}".encode()
        self._prune(used)
        return first

    async def look(self) -> None:
        """Read the records again if another process changed them."""
        if self._folder is not None and await asyncio.to_thread(self._stamped) != self._stamp:
            await asyncio.to_thread(self._read_again)

    def watching(self) -> AbstractAsyncContextManager[None]:
        return repeated(self.look, LOOK_SECONDS, name="watch links")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self._folder is None:
            yield
            return
        record.make_folder(self._folder)
        with durable.locked_folder(self._folder):
            yield

    @contextlib.contextmanager
    def _changing(self, chat: Chat) -> Iterator[ChatLinks]:
        with self._locked():
            yield self._fresh(chat.digest)

    def _fresh(self, digest: str) -> ChatLinks:
        """What the disk says, which another process may have changed."""
        if self._folder is not None:
            path = self._folder / f"{digest}.json"
            if path.exists() and (found := self._read(path)) is not None:
                return found
        return self._records.get(digest, _NONE)

    def _write(self, links: ChatLinks, chat: Chat) -> None:
        self._put(chat.digest, links)

    def _put(self, digest: str, links: ChatLinks) -> None:
        if self._folder is not None:
            whose = {"tenant": links.chat.tenant, "chat": links.chat.id} if links.chat is not None else {}
            listed = [asdict(link) for link in links.links]
            record.write(self._folder / f"{digest}.json", {**whose, "epoch": links.epoch, "links": listed})
        self._records = {**self._records, digest: links}
        self._touch()

    def _touch(self) -> None:
        self.version += 1
        if self._folder is not None:
            is_known = self._stamped() == self._stamp
            record.write(self._folder / _STAMP, {"changed": secrets.token_hex(8)})
            if is_known:  # else another process changed something that was not looked at yet
                self._stamp = self._stamped()

    def _stamped(self) -> int | None:
        if self._folder is None:
            return None
        try:
            found = (self._folder / _STAMP).stat()
        except OSError:
            return None
        return hash((found.st_ino, found.st_mtime_ns, found.st_ctime_ns))

    def _read(self, path: Path) -> ChatLinks | None:
        """A record. Of one that cannot be read all links end: it may have said that they were revoked."""
        try:
            return _parsed(path)
        except FileNotFoundError:
            return None
        except NewerRecord as error:
            log.warning("links of a chat are all ended: %s", error, extra={"file": path.name})
        except (BadRecord, BadChatId) as error:
            log.warning("a record of links was set aside, and they end: %s", error, extra={"file": path.name})
            record.keep_bad(path)
            ended = ChatLinks(None, int(self._clock()))
            record.write(path, {"epoch": ended.epoch, "links": []})
            return ended
        return ChatLinks(None, int(self._clock()))

    def _prune(self, used: Path) -> None:
        """Forget the uses of tokens that have expired."""
        for path in used.iterdir():
            with contextlib.suppress(OSError, ValueError):
                if int(path.read_text().partition(" ")[0]) + DAY < self._clock():
                    path.unlink()


_NONE = ChatLinks()


def _parsed(path: Path) -> ChatLinks:
    fields = record.read(path)
    chat = Chat(fields.text("chat"), fields.text("tenant")) if "chat" in fields.values else None
    if chat is not None and chat.digest != path.stem:
        raise BadRecord("it is another chat's")
    listed = fields.values.get("links")
    if not isinstance(listed, list) or len(listed) > MAX_LINKS:
        raise BadRecord("links is not a list")
    return ChatLinks(chat, fields.whole("epoch"), tuple(_link(one) for one in listed))


def _link(written: object) -> MadeLink:
    fields = Fields(written if isinstance(written, dict) else {})
    access = fields.text("access")
    if access not in list(LinkAccess):
        raise BadRecord("access is neither view nor control")
    id, label = fields.text("id", 16), fields.text("label", MAX_LABEL)
    created, expires = fields.whole("created"), fields.whole("expires")
    opens = fields.text("opens", 20) if "opens" in fields.values else Opens.CHAT.value
    path = fields.text("path", MAX_SCOPE) if "path" in fields.values else ""
    try:
        scope = LinkScope.of(opens, path)
    except BadScope as error:
        raise BadRecord(str(error)) from None
    return MadeLink(id, LinkAccess(access), label, created, expires, scope.opens.value, scope.path)
