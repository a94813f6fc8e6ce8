"""The audit log, as the event loop uses it: record, and refuse what could not be recorded."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from cubicle import __version__
from cubicle.audit.files import SEGMENT
from cubicle.audit.repeats import SECONDS, Repeats, Tell
from cubicle.audit.writer import AuditWriter, Batch, Progress, Prune
from cubicle.core.chat import Chat
from cubicle.core.identity import Identity
from cubicle.journal import format
from cubicle.log import bound_fields
from cubicle.operation_settings import AuditMode
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

MAX_WAITING = 32 << 20
"""Bytes of records that wait in memory; further ones are not kept, and the log says how many."""
GATHER_SECONDS = 0.2
"""A record is handed to the thread within this."""
_STUCK_SECONDS = 10.0
_STOP_SECONDS = 15.0
_PRUNE_SECONDS = 3600.0
_DIGEST = 32
_MAX_TEXT = 256


class AuditUnavailable(Exception):
    """The audit log cannot be written, and nothing is done that it does not tell of. The message says what to do."""

    seconds = 5
    """After which it is worth to try again."""


class Audit:
    """One for the whole service. `key` makes the digests that stand in it for ids, arguments and results."""

    def __init__(
        self,
        folder: Path,
        key: bytes,
        *,
        mode: AuditMode = AuditMode.REQUIRED,
        limit: int = 0,
        max_age: float = 365 * 86400,
        segment: int = SEGMENT,
    ) -> None:
        self._key = hmac.digest(key, b"audit log", "sha256")
        self._mode = mode
        self._max_age = max_age
        self._clock: Callable[[], float | None] = lambda: None
        self._writer = AuditWriter(folder, self._tell, limit=limit, segment=segment, version=__version__)
        self._bodies: list[bytes] = []
        self._size = 0
        """Bytes of those."""
        self._waiting = 0
        """Bytes of all that is not on disk."""
        self._lost = 0
        self._token = self._acknowledged = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._error = ""
        self._closed = True
        self._keeper: asyncio.Task[None] | None = None
        self._repeats: list[Repeats] = []

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._mode is not AuditMode.OFF:
            self._closed = False
            self._writer.start()
            await self.settle()
            self._keeper = start_task(self._keep(), name="audit log")
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Write what waits; a disk that does not answer is not waited for."""
        if self._closed:
            return
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        for repeats in self._repeats:
            repeats.end()
        self._hand_over()
        self._closed = True
        if not await asyncio.to_thread(self._writer.stop, _STOP_SECONDS):
            log.error("the end of the audit log is not on disk: %s", self._error or "the disk does not answer")

    @property
    def keeps(self) -> bool:
        """Whether anything is recorded."""
        return not self._closed

    @property
    def error(self) -> str:
        """Why the log cannot be written at present; empty if it can."""
        return self._error

    @property
    def waiting(self) -> int:
        """Bytes that are not on disk."""
        return self._waiting

    def attend(self, clock: Callable[[], float | None]) -> None:
        """Have records age by this clock, that of the service; None while nothing is to be dropped."""
        self._clock = clock

    def require(self) -> None:
        """Raises AuditUnavailable if what begins now could not be recorded, and has to be (AUDIT=required)."""
        if self._error and self._mode is AuditMode.REQUIRED:
            raise AuditUnavailable(
                f"The audit log of this service cannot be written ({self._error}), and nothing new begins without it. "
                f"Try again later, and tell the operator if it goes on."
            )

    def digest(self, *parts: str | bytes) -> str:
        """What stands in the log for a text that is not to be read there: only who has the text can tell it."""
        joined = b"\0".join(part if isinstance(part, bytes) else part.encode("utf-8", "replace") for part in parts)
        return hmac.digest(self._key, joined, "sha256").hex()[:_DIGEST]

    def chat_digest(self, chat: Chat) -> str:
        return self.folder_digest(chat.digest)

    def folder_digest(self, digest: str) -> str:
        """The same for a chat of which only its own digest is known."""
        return self.digest("chat", digest)

    def content_digest(self, data: bytes) -> str:
        """The same for a result, by its SHA-256."""
        return self.digest("content", hashlib.sha256(data).digest())

    def record(
        self, kind: str, fields: Mapping[str, Any], *, chat: Chat | None = None, identity: Identity | None = None
    ) -> None:
        """Add a record. Does not wait. Who it was is read from the identity, or else from what the log is told of the
        request that is being answered."""
        if self._closed:
            return
        said: dict[str, Any] = who(identity)
        if chat is not None:
            said["tenant"] = chat.tenant
            if identity is not None and identity.tenant != chat.tenant:
                said["by_tenant"] = identity.tenant
            said["chat"] = self.chat_digest(chat)
        said.update(fields)
        body = format.body(time.time(), kind, said)
        if self._waiting + len(body) > MAX_WAITING:
            self._lost += 1
            return
        if self._lost:
            self._hand_over()
        self._bodies.append(body)
        self._size += len(body)
        self._waiting += len(body)
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._hand_over)

    def repeats(self, tell: Tell, seconds: float = SECONDS) -> Repeats:
        """For what may happen very often: the log tells of the first, and counts the others."""
        self._repeats.append(made := Repeats(tell, seconds))
        return made

    async def settle(self) -> None:
        """Wait until all that was recorded before is on disk, or cannot be written."""
        if self._closed:
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._hand_over(always=True)
        self._waiters.append((self._token, done))
        await done

    def prune(self, now: float) -> None:
        """Drop what is too old at this reading of the service's clock."""
        self._writer.put(Prune(now, self._max_age))

    def _hand_over(self, *, always: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not (self._bodies or self._lost or always):
            return
        self._token += 1
        self._writer.put(Batch(self._bodies, self._size, self._lost, self._token))
        self._bodies, self._size, self._lost = [], 0, 0
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(_STUCK_SECONDS, self._stuck)

    def _stuck(self) -> None:
        self._watchdog = None
        self._error = "the disk does not answer"
        log.error("the audit log cannot be written: %s", self._error)
        self._answer(self._token)

    def _tell(self, progress: Progress) -> None:
        """In the thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._told, progress)

    def _told(self, progress: Progress) -> None:
        self._waiting -= progress.written
        self._error = progress.error
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        self._acknowledged = max(self._acknowledged, progress.token)
        if self._acknowledged < self._token and not progress.error and not self._closed:
            self._watchdog = self._loop.call_later(_STUCK_SECONDS, self._stuck)
        self._answer(self._token if progress.error else self._acknowledged)

    def _answer(self, token: int) -> None:
        for wanted, done in self._waiters:
            if wanted <= token and not done.done():
                done.set_result(None)
        self._waiters = [each for each in self._waiters if not each[1].done()]

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_PRUNE_SECONDS)
            if (now := self._clock()) is not None:
                self.prune(now)


def who(identity: Identity | None) -> dict[str, Any]:
    """Who does it, in the words of the log."""
    seen = bound_fields()
    found: dict[str, Any] = {}
    if identity is None or identity.public:
        found = {"tenant": seen.get("tenant"), "user": seen.get("user"), "key": seen.get("key_id")}
    else:
        found = {"tenant": identity.tenant, "user": identity.user, "key": identity.key_id}
        found["role"] = "operator" if identity.is_operator else ""
        found["by"] = "link" if identity.link else identity.credential.value
    found["request"] = seen.get("request")
    return {name: str(value)[:_MAX_TEXT] for name, value in found.items() if value}


def no_audit() -> Audit:
    """One that records nothing."""
    return Audit(Path(), b"", mode=AuditMode.OFF)
