"""WS /browser/<chat>/live: the browser as people see it (docs/live-browser.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.websockets import WebSocket, WebSocketDisconnect

from cubicle.browser import messages
from cubicle.browser.live_view import LiveView
from cubicle.browser.live_views import LiveViews
from cubicle.browser.viewer import Viewer
from cubicle.chat.journal_notes import JournalNotes
from cubicle.core import close_codes
from cubicle.core.identity import Identity
from cubicle.core.text import one_line
from cubicle.fairness.fair_slots import FairSlots
from cubicle.http_api.chats import chat_of
from cubicle.http_api.credential import is_view_only
from cubicle.http_api.websocket_proxy import ProxyEnding, hang_up, refusing
from cubicle.journal.journal import no_journal
from cubicle.sandbox.fleet import Fleet

_MAX_FAULTS = 10


class LiveRoutes:
    """One WebSocket a viewer; the open connection is a lease on the sandbox."""

    def __init__(self, fleet: Fleet, screens: LiveViews, notes: JournalNotes | None = None) -> None:
        self._fleet = fleet
        self._notes = notes or JournalNotes(no_journal())
        self._screens = screens
        screens.told = lambda chat, one: self._notes.hand_back(chat, "browser", one.name, one.ended - one.began)
        self._sockets = FairSlots(total=4096, of_tenant=1024, of_chat=64)

    async def socket(self, client: WebSocket) -> None:
        chat = chat_of(client)
        async with (
            refusing(client),
            self._sockets.hold(chat, wait=False),
            self._fleet.lease(chat, create=False, wake=False) as machine,
            self._screens.join(chat, machine) as (screen, viewer),
        ):
            viewer.view_only = is_view_only(client)
            _name(viewer, getattr(client.state, "identity", None))
            await client.accept()
            ending = await _serve(client, screen, viewer, lambda: self._notes.take_over(chat, "browser", viewer.name))
            await hang_up(client, ending.code, ending.reason)


def _name(viewer: Viewer, identity: Identity | None) -> None:
    """Whom the service knows is called so; others say themselves what they are called."""
    if identity is not None and identity.user:
        viewer.name, viewer.known = one_line(identity.user)[:100], True


async def _serve(client: WebSocket, screen: LiveView, viewer: Viewer, take_over: Callable[[], None]) -> ProxyEnding:
    """Until one side ends it."""
    async with asyncio.TaskGroup() as group:
        ends = [
            group.create_task(_send(client, viewer)),
            group.create_task(_receive(client, screen, viewer, take_over)),
        ]
        done, rest = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        return done.pop().result()


async def _send(client: WebSocket, viewer: Viewer) -> ProxyEnding:
    try:
        while (message := await viewer.next()) is not None:
            if isinstance(message, str):
                await client.send_text(message)
            else:
                await client.send_bytes(message)
    except WebSocketDisconnect:
        return ProxyEnding(close_codes.GOING_AWAY)
    return ProxyEnding(*(viewer.over or (close_codes.BROKEN, "")))


async def _receive(client: WebSocket, screen: LiveView, viewer: Viewer, take_over: Callable[[], None]) -> ProxyEnding:
    while True:
        event = await client.receive()
        if event["type"] == "websocket.disconnect":
            return ProxyEnding(close_codes.GOING_AWAY)
        text = event.get("text")
        if text is not None and len(text.encode()) > messages.MAX_MESSAGE:
            return ProxyEnding(close_codes.TOO_BIG, "A message is over 1 MiB.")
        try:
            said = messages.parse(text or "")
        except messages.BadViewerMessage:
            viewer.faults += 1
            viewer.tell({"type": "refused", "message": "", "reason": "bad-message"})
            if viewer.faults >= _MAX_FAULTS:
                return ProxyEnding(1008, "Too many messages that are none of the list.")
        else:
            drove = screen.driving.holder is viewer
            await screen.driving.obey(viewer, said)
            if not drove and screen.driving.holder is viewer:
                take_over()
