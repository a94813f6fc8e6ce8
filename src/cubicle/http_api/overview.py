"""The numbers and the table of the admin page: once as JSON, or as events each time that a part of it changes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import FairSlots
from cubicle.http_api.held_response import HeldResponse
from cubicle.http_api.overview_numbers import Numbers, Snapshot, Sources
from cubicle.http_api.sandbox_table import View, page_of
from cubicle.log import detached
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""How soon somebody who follows sees a change."""
_SHARE = 20
"""A look waits so many times as long as the last one took: pages of a large service take a small part of its time."""
_SAMPLE_SECONDS = 3.0
_HEARTBEAT_SECONDS = 15.0
_STREAMS = Chat("overview")

Parts = dict[str, str]
"""JSON by the name of the part (overview_models.Overview)."""


class Feed:
    """One look at everything for all who follow, for as long as somebody does."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._numbers = Numbers(sources)
        self._snapshot: Snapshot | None = None
        self._visible: dict[object, list[str]] = {}
        """The names of the sandboxes that each follower sees."""
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._spent = 0.0
        self._is_over = False

    async def now(self, view: View) -> Parts:
        """All parts, as they are. Only what is seen is asked what it uses."""
        snapshot = await self._numbers.snapshot()
        names = page_of([entry for entry in snapshot.entries if view.shows(entry.chat)], view)[1]
        await self._sources.stats.sample([entry.seen for entry in snapshot.entries], set(names), others=0)
        return (await self._parts(await self._numbers.snapshot(), view))[0]

    async def follow(self, view: View) -> AsyncGenerator[Parts | None]:
        """All parts, then those that changed; None now and then, by which a client that is gone is found."""
        async with self._following() as follower:
            sent: Parts = {}
            told, number = time.monotonic(), 0
            while not self._is_over:
                snapshot = await self._later_than(number)
                if snapshot is None:
                    break
                number = snapshot.number
                parts, self._visible[follower] = await self._parts(snapshot, view)
                changed = {name: text for name, text in parts.items() if sent.get(name) != text}
                if changed:
                    sent, told = parts, time.monotonic()
                    yield changed
                elif time.monotonic() - told > _HEARTBEAT_SECONDS:
                    told = time.monotonic()
                    yield None

    def end(self) -> None:
        """Whoever follows now is at the end, and so is whoever comes."""
        self._is_over = True
        self._wake()

    async def _parts(self, snapshot: Snapshot, view: View) -> tuple[Parts, list[str]]:
        began = time.perf_counter()
        entries = [entry for entry in snapshot.entries if view.shows(entry.chat)]
        page, names = page_of(entries, view)
        parts = {
            "service": json.dumps(self._numbers.service(snapshot, entries, view)),
            "tenants": json.dumps(await self._numbers.tenants(entries, view)),
            "problems": json.dumps(self._numbers.problems(view)),
            "history": json.dumps(self._numbers.history(view)),
            "sandboxes": json.dumps(page),
        }
        self._spent += time.perf_counter() - began
        return parts, names

    async def _later_than(self, number: int) -> Snapshot | None:
        while not self._is_over and self._tasks and not any(task.done() for task in self._tasks):
            if self._snapshot is not None and self._snapshot.number > number:
                return self._snapshot
            await self._changed.wait()
        return None

    @asynccontextmanager
    async def _following(self) -> AsyncIterator[object]:
        follower = object()
        self._visible[follower] = []
        if not self._tasks:
            self._tasks = [
                start_task(self._keep_looking(), name="overview"),
                start_task(self._keep_asking(), name="stats of sandboxes"),
            ]
        try:
            yield follower
        finally:
            del self._visible[follower]
            if not self._visible:
                tasks, self._tasks, self._snapshot = self._tasks, [], None
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def _keep_looking(self) -> None:
        with detached():  # it is nobody's request
            while True:
                began, self._spent = time.perf_counter(), 0.0
                try:
                    self._snapshot = await self._numbers.snapshot()
                except Exception:
                    log.exception("the overview of the sandboxes could not be made")
                took = time.perf_counter() - began
                self._wake()
                await asyncio.sleep(_LOOK_SECONDS)
                await asyncio.sleep((took + self._spent) * _SHARE)

    async def _keep_asking(self) -> None:
        with detached():
            while True:
                visible = {name for names in self._visible.values() for name in names}
                try:
                    await self._sources.stats.sample(self._sources.fleet.overview(), visible)
                except Exception:
                    log.exception("what the sandboxes use could not be asked")
                await asyncio.sleep(_SAMPLE_SECONDS if visible else _LOOK_SECONDS)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class OverviewRoutes:
    """For operators of every tenant, for others of their own."""

    def __init__(self, sources: Sources) -> None:
        self._feed = Feed(sources)
        self._streams = FairSlots(total=512, of_tenant=128, of_chat=128)

    async def get(self, request: Request) -> Response:
        parts = await self._feed.now(View.of(request))
        return Response(_joined(parts), media_type="application/json", headers={"Cache-Control": "no-store"})

    async def events(self, request: Request) -> Response:
        view = View.of(request)
        chat = Chat(_STREAMS.id, view.person.tenant)
        return HeldResponse(lambda: self._held(chat, view))

    @asynccontextmanager
    async def _held(self, chat: Chat, view: View) -> AsyncIterator[Response]:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        async with self._streams.hold(chat, wait=False), aclosing(self._stream(view)) as stream:
            yield StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _stream(self, view: View) -> AsyncGenerator[str]:
        yield "retry: 2000\n\n"
        async with aclosing(self._feed.follow(view)) as followed:
            async for parts in followed:
                yield ": nothing new\n\n" if parts is None else f"data: {_joined(parts)}\n\n"

    def end_streams(self) -> None:
        """Those who follow would hold up the end of the service."""
        self._feed.end()


def _joined(parts: Parts) -> str:
    """One JSON object of the parts, and when they were so."""
    return "{" + ",".join([f'"now":{time.time():.3f}', *(f'"{name}":{text}' for name, text in parts.items())]) + "}"
