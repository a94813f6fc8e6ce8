"""The operator's table: /api/sandboxes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.chat.activity import Activity
from cubicle.core.chat import Chat
from cubicle.core.identity import Identity
from cubicle.core.personal_chats import may_enter
from cubicle.core.text import one_line
from cubicle.http_api.chats import ALL_TENANTS, asked_tenant, chat_of
from cubicle.http_api.errors import refuse
from cubicle.http_api.models import SandboxList, SandboxRow, SandboxStopped, SandboxTotals, TrashRow
from cubicle.machine.errors import SandboxError
from cubicle.sandbox.driver import CONDITIONS, State
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.slot import Overview
from cubicle.sandbox.trash import Discarded

_ASK_SECONDS = 3.0
_MAX_CONCURRENT = 64


class AdminRoutes:
    """Every sandbox of the caller's tenant, for an operator of any; stop it, or remove it to the trash."""

    def __init__(self, fleet: Fleet, activity: Activity) -> None:
        self._fleet = fleet
        self._activity = activity
        self._looks: dict[str, tuple[float, float]] = {}

    async def listed(self, request: Request) -> Response:
        shows = _showing(request)
        seen = [overview for overview in self._fleet.overview() if overview.chat is not None and shows(overview.chat)]
        gate = asyncio.Semaphore(_MAX_CONCURRENT)
        rows = await asyncio.gather(*(self._row(overview, gate) for overview in seen))
        names = {overview.name for overview in self._fleet.overview()}
        self._looks = {name: look for name, look in self._looks.items() if name in names}
        running = sum(overview.state is State.RUNNING for overview in seen)
        totals = SandboxTotals(sandboxes=len(seen), running=running)
        trash = [row for each in await self._trash() if (row := _trash_row(each, shows)) is not None]
        if trash:
            size = sum(row["disk_bytes"] or 0 for row in trash)
            totals["in_trash"], totals["MB_in_trash"] = len(trash), round(size / 1000**2)
        return JSONResponse(SandboxList(sandboxes=rows, trash=trash, totals=totals))

    async def _trash(self) -> Sequence[Discarded]:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return await self._fleet.trash()
        except (SandboxError, OSError, TimeoutError):
            return []  # the sandboxes are shown without it

    async def _row(self, overview: Overview, gate: asyncio.Semaphore) -> SandboxRow:
        assert overview.chat is not None
        tool, user = self._activity.last(overview.chat)
        row: SandboxRow = {
            "chat": overview.chat.id,
            "tenant": overview.chat.tenant,
            "state": CONDITIONS[overview.state],
            "reason": overview.reason,
            "age_seconds": round(overview.age_seconds, 1) if overview.age_seconds is not None else None,
            "idle_seconds": round(overview.idle_seconds, 1),
            "connections": overview.leases,
            "user": one_line(user, 200),
            "last_tool": tool,
        }
        try:
            async with gate, asyncio.timeout(_ASK_SECONDS):
                stats = await self._fleet.usage(overview.chat)
        except (SandboxError, TimeoutError):
            return row
        if stats is None:
            return row
        row["cpu_seconds"] = stats.cpu_seconds
        row["cpu_percent"] = self._cpu_percent(overview.name, stats.cpu_seconds)
        row["memory_bytes"] = stats.memory
        row["disk_bytes"] = stats.disk_used
        row["processes"] = stats.processes
        return row

    def _cpu_percent(self, name: str, seconds: float | None) -> float | None:
        """Of one CPU, since the last look at this sandbox."""
        if seconds is None:
            return None
        now = time.monotonic()
        before, used = self._looks.get(name, (now, seconds))
        self._looks[name] = (now, seconds)
        return round(max(0.0, seconds - used) / (now - before) * 100, 1) if now > before else None

    async def stop(self, request: Request) -> Response:
        chat = chat_of(request)
        if not self._fleet.has(chat):
            raise refuse(404, "This chat has no sandbox.")
        await self._fleet.stop(chat)
        return JSONResponse(SandboxStopped(stopped=True, chat=chat.id))

    async def remove(self, request: Request) -> Response:
        if not await self._fleet.remove(chat_of(request)):
            raise refuse(404, "This chat has no sandbox.")
        return Response(status_code=204)


def _showing(request: Request) -> Callable[[Chat], bool]:
    """Which chats are shown to whom: those of the tenant that is asked for, less the workspaces of other people."""
    identity: Identity = request.state.identity
    tenant = asked_tenant(request)
    return lambda chat: tenant in (ALL_TENANTS, chat.tenant) and may_enter(identity, chat.id)


def _trash_row(each: Discarded, shows: Callable[[Chat], bool]) -> TrashRow | None:
    """One removed sandbox, if it is shown."""
    note = each.note
    if note is None or note.chat is None or not shows(note.chat):
        return None
    return TrashRow(
        chat=note.chat.id, tenant=note.chat.tenant, removed_at=note.at, reason=note.reason, disk_bytes=note.size
    )
