"""The table of the admin page: which sandboxes somebody sees, filtered, sorted, and a page of them at a time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from starlette.requests import Request

from cubicle.core.chat import Chat
from cubicle.core.identity import Identity
from cubicle.core.personal_chats import may_enter
from cubicle.core.text import one_line
from cubicle.http_api.chats import ALL_TENANTS, asked_tenant
from cubicle.http_api.errors import refuse
from cubicle.http_api.overview_models import SORTS, SandboxPage, SandboxShown
from cubicle.http_api.sandbox_stats import SandboxUse
from cubicle.sandbox.driver import CONDITIONS, State
from cubicle.sandbox.slot import Overview

MAX_ROWS = 200
_ROWS = 100
_MAX_TEXT = 200
_MAX_OFFSET = 1_000_000
_DIGITS = re.compile(r"([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class View:
    """What one admin page shows, and to whom."""

    tenant: str
    """Whose sandboxes; `*` is everybody's."""
    operator: bool
    person: Identity
    """Who looks: not into the workspaces of other people."""
    text: str = ""
    state: str = ""
    sort: str = "chat"
    descending: bool = False
    offset: int = 0
    limit: int = _ROWS

    @classmethod
    def of(cls, request: Request) -> Self:
        """As the query says. Raises 400, 403."""
        identity: Identity = request.state.identity
        asked = request.query_params
        sort, state = asked.get("sort", "chat"), asked.get("state", "")
        if sort not in SORTS:
            raise refuse(400, f"sort has to be one of {', '.join(SORTS)}.")
        if state and state not in CONDITIONS.values():
            raise refuse(400, f"state has to be one of {', '.join(CONDITIONS.values())}.")
        return cls(
            asked_tenant(request),
            identity.is_operator,
            identity,
            asked.get("q", "")[:_MAX_TEXT].lower(),
            state,
            sort,
            asked.get("order", "") == "desc",
            _number(asked, "offset", 0, _MAX_OFFSET),
            max(1, _number(asked, "limit", _ROWS, MAX_ROWS)),
        )

    @property
    def one_tenant(self) -> str | None:
        """The tenant, if it is one."""
        return None if self.tenant == ALL_TENANTS else self.tenant

    def shows(self, chat: Chat | None) -> bool:
        if chat is None or self.tenant not in (ALL_TENANTS, chat.tenant):
            return False
        return self.may_see(chat.id)

    def may_see(self, chat_id: str) -> bool:
        """Whether it is no workspace of somebody else, whatever its tenant."""
        return may_enter(self.person, chat_id)


def _number(asked: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = asked.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise refuse(400, f"{name} has to be a whole number.")
    return min(int(text), most)


@dataclass(slots=True)
class Entry:
    """A sandbox with all that its row shows."""

    seen: Overview
    chat: Chat
    tool: str
    user: str
    use: SandboxUse
    errors: int

    def matches(self, view: View) -> bool:
        if view.state and CONDITIONS[self.seen.state] != view.state:
            return False
        if not view.text:
            return True
        text = f"{self.chat.id}\n{self.chat.tenant}\n{self.user}\n{self.tool}\n{CONDITIONS[self.seen.state]}"
        return view.text in text.lower()

    def row(self, now: float) -> SandboxShown:
        seen, use = self.seen, self.use
        row: SandboxShown = {
            "chat": self.chat.id,
            "tenant": self.chat.tenant,
            "state": CONDITIONS[seen.state],
            "reason": one_line(seen.reason, 500),
            "since": round(now - seen.age_seconds) if seen.age_seconds is not None else None,
            "idle_since": None if seen.leases else round(now - seen.idle_seconds),
            "connections": seen.leases,
            "user": one_line(self.user, 200),
            "last_tool": self.tool,
            "errors": self.errors,
            "cpu_percent": use.cpu_percent,
            "memory_bytes": use.memory,
            "disk_bytes": use.disk,
        }
        return row


_RANKS = {State.FAILED: 0, State.STARTING: 1, State.RUNNING: 2, State.STOPPED: 3}
_KEYS: dict[str, Callable[[Entry], Any]] = {
    "chat": lambda entry: natural(entry.chat.id),
    "tenant": lambda entry: natural(entry.chat.tenant),
    "state": lambda entry: _RANKS.get(entry.seen.state, 9),
    "user": lambda entry: entry.user.lower(),
    "age": lambda entry: -1 if entry.seen.age_seconds is None else entry.seen.age_seconds,
    "idle": lambda entry: entry.seen.idle_seconds,
    "cpu": lambda entry: -1 if entry.use.cpu_percent is None else entry.use.cpu_percent,
    "memory": lambda entry: entry.use.memory or -1,
    "disk": lambda entry: entry.use.disk or -1,
    "connections": lambda entry: entry.seen.leases,
    "tool": lambda entry: entry.tool,
    "errors": lambda entry: entry.errors,
}


def natural(name: str) -> list[tuple[int, str]]:
    """A key by which chat-9 comes before chat-10."""
    return [
        (int(part), "") if place % 2 else (-1, part.lower()) for place, part in enumerate(_DIGITS.split(name)) if part
    ]


def chosen(entries: Sequence[Entry], view: View) -> list[Entry]:
    """Those that the view wants to see, in its order; equal ones by name."""
    found = [entry for entry in entries if entry.matches(view)]
    if view.sort != "chat":
        found.sort(key=lambda entry: (natural(entry.chat.id), entry.chat.tenant))
        found.sort(key=_KEYS[view.sort], reverse=view.descending)
    else:
        found.sort(key=lambda entry: (natural(entry.chat.id), entry.chat.tenant), reverse=view.descending)
    return found


def page_of(entries: Sequence[Entry], view: View) -> tuple[SandboxPage, list[str]]:
    """One page of the table, and the names of the sandboxes in it. Past the end the last page is shown."""
    found, now = chosen(entries, view), time.time()
    offset = view.offset if view.offset < len(found) else max(0, (len(found) - 1) // view.limit * view.limit)
    shown = found[offset : offset + view.limit]
    page: SandboxPage = {
        "rows": [entry.row(now) for entry in shown],
        "offset": offset,
        "matching": len(found),
        "total": len(entries),
    }
    return page, [entry.seen.name for entry in shown]
