"""The optional settings service: a user's own skills and personal tokens (see docs/settings-service.md)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import anyio
import httpx

from cubicle.core.text import one_line
from cubicle.prompt.skills import (
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_SKILL_BYTES,
    MAX_SKILLS,
    BadSkill,
    Skill,
    SkillFile,
    Source,
    assemble,
)

log = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
RETRY_SECONDS = 15.0
STALE_SECONDS = 24 * 3600.0
WAIT_SECONDS = 3.0
MAX_ANSWER_BYTES = 48 * 1024 * 1024
MAX_USERS = 1000
MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Token:
    """A header that the service adds to requests for one host; the sandbox never sees it."""

    name: str
    host: str
    header: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class UserSettings:
    skills: tuple[Skill, ...] = ()
    tokens: tuple[Token, ...] = ()


NOTHING = UserSettings()


class BadAnswer(Exception):
    """The settings service answered something that its contract does not have."""


@dataclass(slots=True)
class _Kept:
    settings: UserSettings = NOTHING
    tag: str = ""
    good_at: float = float("-inf")
    asked_at: float = float("-inf")
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class SettingsService:
    """Asks the settings service, and remembers: when it is down, the last good answer serves for a day."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        token: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._url = url.rstrip("/")
        self._token = token
        self._clock = clock
        self._users: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    async def of(self, email: str, tenant: str) -> UserSettings:
        """What this user has; never raises, and never waits longer than WAIT_SECONDS for the network."""
        if email.strip() in (".", ".."):
            return NOTHING  # as a part of an address it would lead to another one
        kept = self._remembered((tenant, email.strip().lower()))
        async with kept.lock:  # callers of one user wait for one request
            if self._due(kept):
                await self._refresh(kept, email.strip(), tenant)
        return kept.settings if self._clock() - kept.good_at <= STALE_SECONDS else NOTHING

    def _remembered(self, user: tuple[str, str]) -> _Kept:
        kept = self._users.setdefault(user, _Kept())
        self._users.move_to_end(user)
        while len(self._users) > MAX_USERS:
            self._users.popitem(last=False)
        return kept

    def _due(self, kept: _Kept) -> bool:
        now = self._clock()
        return now - kept.good_at >= FRESH_SECONDS and now - kept.asked_at >= RETRY_SECONDS

    async def _refresh(self, kept: _Kept, email: str, tenant: str) -> None:
        kept.asked_at = self._clock()
        try:
            with anyio.fail_after(WAIT_SECONDS):
                status, tag, body = await self._ask(email, tenant, kept.tag)
                if status == 200:
                    kept.settings, kept.tag = await anyio.to_thread.run_sync(read_answer, body), tag
                elif status == 404:
                    kept.settings, kept.tag = NOTHING, ""
                elif status != 304:
                    raise BadAnswer(f"it answered {status}")
        except (httpx.HTTPError, httpx.InvalidURL, BadAnswer, TimeoutError, ValueError) as error:
            reason = str(error) if isinstance(error, BadAnswer) else type(error).__name__
            log.warning("settings service does not answer: %s; what it said last is used", reason)
            return
        kept.good_at = self._clock()

    async def _ask(self, email: str, tenant: str, tag: str) -> tuple[int, str, bytes]:
        headers = {"Accept": "application/json", "X-Tenant": quote(tenant)}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if tag:
            headers["If-None-Match"] = tag
        address = f"{self._url}/users/{quote(email, safe='')}"
        async with self._client.stream("GET", address, headers=headers, follow_redirects=False) as answer:
            body = bytearray()
            if answer.status_code == 200:
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise BadAnswer(f"its answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
            return answer.status_code, _tag(answer.headers.get("ETag", "")), bytes(body)


def _tag(sent: str) -> str:
    """A tag that can be sent back as it came; without one the whole answer is asked for again."""
    return sent if sent.isascii() and sent.isprintable() else ""


def read_answer(body: bytes) -> UserSettings:
    """The settings in an answer, less each skill or token that is broken; BadAnswer when it holds none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise BadAnswer("its answer is not JSON") from None
    if not isinstance(answer, dict):
        raise BadAnswer("its answer is not an object")
    skills: dict[str, Skill] = {}
    for item in _items(answer, "skills", MAX_SKILLS):
        try:
            skill = _skill(item)
        except BadSkill as error:
            log.warning("skill left out: %s (settings): %s", one_line(str(item.get("name"))), error)
            continue
        skills.setdefault(skill.name, skill)
    tokens = [t for t in map(_token, _items(answer, "tokens", MAX_TOKENS)) if t]
    return UserSettings(tuple(skills.values()), tuple(tokens))


def _items(answer: dict[str, Any], name: str, limit: int) -> list[dict[str, Any]]:
    items = answer.get(name) or []
    if not isinstance(items, list):
        raise BadAnswer(f"its {name} are not a list")
    return [item for item in items[:limit] if isinstance(item, dict)]


def _skill(item: dict[str, Any]) -> Skill:
    listed = item.get("files")
    if not isinstance(listed, dict) or not 0 < len(listed) <= MAX_FILES:
        raise BadSkill(f"files must be an object of 1 to {MAX_FILES} files")
    files = [_file(path, value) for path, value in listed.items()]
    if any(str(folder) in listed for f in files for folder in PurePosixPath(f.path).parents):
        raise BadSkill("one of its files is also a folder of another")
    if sum(f.size for f in files) > MAX_SKILL_BYTES:
        raise BadSkill(f"it is larger than {MAX_SKILL_BYTES >> 20} MiB")
    return assemble(str(item.get("name")), Source.SETTINGS, files)


def _file(path: str, value: Any) -> SkillFile:
    parts = path.split("/")
    if not path.isprintable() or len(path) > 512 or any(p in ("", ".", "..") or len(p.encode()) > 255 for p in parts):
        raise BadSkill("a file path must be relative, without empty parts, dots or control characters")
    fields = {"text": value} if isinstance(value, str) else value
    match fields:
        case {"text": str(text)}:
            content = text.encode(errors="replace")
        case {"base64": str(text)}:
            try:
                content = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise BadSkill("a file is not base64") from None
        case _:
            raise BadSkill('a file must be a text, {"text": …} or {"base64": …}')
    if len(content) > MAX_FILE_BYTES:
        raise BadSkill(f"a file is larger than {MAX_FILE_BYTES >> 20} MiB")
    executable = fields.get("executable") is True
    return SkillFile(path, len(content), hashlib.sha256(content).hexdigest(), executable, content)


def _token(item: dict[str, Any]) -> Token | None:
    match item:
        case {"name": str(name), "host": str(host), "value": str(value)} if host and value:
            header = item.get("header", "Authorization")
            words = (name, host, value, header)
            if all(isinstance(w, str) and w.isprintable() and w.isascii() for w in words):
                return Token(name, host.lower(), header, value)
    log.warning("token left out: it needs name, host and value, in plain characters")
    return None
