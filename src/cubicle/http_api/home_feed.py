"""What the home page shows, as it changes: the chats used last, the client that came, the demo. Wakes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, cast

from starlette.requests import HTTPConnection

from cubicle.browser.last_pictures import LastPictures
from cubicle.chat.activity import Activity, NewestCall
from cubicle.chat.clients import Clients, SeenClient
from cubicle.core.chat import DEFAULT_CHAT_ID, Chat
from cubicle.core.chat_isolation import Isolation
from cubicle.core.identity import Identity
from cubicle.core.personal_chats import chat_id_of, may_enter
from cubicle.core.text import one_line
from cubicle.http_api.home_elsewhere import AGAIN_SECONDS, HomeElsewhere, merged
from cubicle.http_api.home_models import ChatCard, ClientSeen, DemoState, Home, HomePart, OtherHome
from cubicle.log import detached
from cubicle.sandbox.driver import CONDITIONS, State
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.slot import Overview
from cubicle.tasks import start_task
from cubicle.tools.demo import DEMO_CHAT, Demos

MAX_CARDS = 12
GAP_SECONDS = 0.5
"""A follower is told of changes no more often."""
_LOOK_SECONDS = 5.0
"""How soon a change is seen that nothing tells of, such as the stop of a sandbox."""
_MAX_TOLD = 48
"""Chats and clients that another member is told of: it does not show all of them to everybody."""
_HEARTBEAT_SECONDS = 15.0
_MAX_OUTPUT = 600
_MAX_WORDS = 200


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who looks at the page: a person sees the chats of the own tenant, less the workspaces of other people."""

    identity: Identity
    mode: Isolation = Isolation.LENIENT

    def shows(self, chat: Chat) -> bool:
        return chat.tenant == self.identity.tenant and may_enter(self.identity, chat.id)

    @property
    def demo_chat(self) -> Chat:
        """The chat in which the person's demo is played. Where there is one chat for all, it is that one."""
        person = self.identity.person
        if self.mode is Isolation.SINGLE:
            return Chat(chat_id_of(person) if person else DEFAULT_CHAT_ID, self.identity.tenant)
        return Chat(chat_id_of(person, DEMO_CHAT) if person else DEMO_CHAT, self.identity.tenant)


def watcher_of(connection: HTTPConnection) -> Watcher:
    """Behind the access check."""
    mode = getattr(connection.state, "isolation", Isolation.LENIENT)
    return Watcher(connection.state.identity, mode)


class HomeFeed:
    """Made once. A follower costs a look at the fleet and a dozen dictionaries each time that something happened."""

    def __init__(
        self,
        fleet: Fleet,
        activity: Activity,
        clients: Clients,
        demos: Demos,
        pictures: LastPictures,
        elsewhere: HomeElsewhere | None = None,
    ) -> None:
        """`elsewhere`: what other members of the service have."""
        self._fleet = fleet
        self._activity = activity
        self._clients = clients
        self._demos = demos
        self._pictures = pictures
        self._elsewhere = elsewhere
        self._news = activity.news
        self._is_over = False
        self._looked: tuple[float, dict[str, list[Overview]]] | None = None
        self._taking: asyncio.Task[None] | None = None
        """Takes pictures of what is shown, apart from those who follow: a browser may not answer."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.end()
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait([self._taking])
        if self._elsewhere is not None:
            await self._elsewhere.close()

    def end(self) -> None:
        """Whoever follows now is at the end, and so is whoever comes."""
        self._is_over = True
        self._news.tell()

    async def now(self, watcher: Watcher) -> Home:
        demo_chat, tenant = watcher.demo_chat, watcher.identity.tenant
        others = await self._elsewhere.of(demo_chat) if self._elsewhere is not None else ()
        own: OtherHome = {
            "chats": await self._cards(tenant, watcher.shows),
            "clients": self._client(watcher.shows),
            "demo": self._demo(demo_chat),
        }
        found = merged(own, others, lambda chat: watcher.shows(Chat(chat, tenant)))
        return {
            "now": round(time.time(), 3),
            "client": max(found["clients"], key=lambda one: one["at"], default=None),
            "chats": sorted(found["chats"], key=lambda card: card["used"], reverse=True)[:MAX_CARDS],
            "demo": found["demo"],
        }

    async def own(self, demo: Chat) -> OtherHome:
        """What this member has, for the home pages that another one shows to the tenant of this chat."""
        cards = await self._cards(demo.tenant, lambda _: True, _MAX_TOLD)
        self._take_pictures(cards, demo.tenant)
        seen = self._clients.of_tenant(demo.tenant, _MAX_TOLD)
        return {"chats": cards, "clients": list(map(_client_seen, seen)), "demo": self._demo(demo)}

    async def follow(self, watcher: Watcher) -> AsyncGenerator[HomePart | None]:
        """All parts, then those that changed; None now and then, by which a client that is gone is found."""
        sent: dict[str, object] = {}
        told = time.monotonic()
        while not self._is_over:
            news = self._news.next
            home = await self.now(watcher)
            changed = {name: value for name, value in home.items() if name != "now" and sent.get(name, self) != value}
            if changed:
                sent.update(changed)
                told = time.monotonic()
                yield cast(HomePart, {"now": home["now"], **changed})
            elif time.monotonic() - told > _HEARTBEAT_SECONDS:
                told = time.monotonic()
                yield None
            self._take_pictures(home["chats"], watcher.identity.tenant)
            await self._wait(news)

    async def _wait(self, news: asyncio.Event) -> None:
        """Until something happens; a while after the last time, however much happens."""
        if not self._is_over:
            await asyncio.sleep(GAP_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS if self._elsewhere is None else AGAIN_SECONDS):
                await news.wait()

    async def _cards(self, tenant: str, shows: Callable[[Chat], bool], most: int = MAX_CARDS) -> list[ChatCard]:
        """The chats of this member that were used last, the newest first."""
        own = self._of_tenants().get(tenant, ())
        shown = [seen for seen in own if seen.chat is not None and shows(seen.chat)]
        newest = sorted(shown, key=lambda seen: (seen.idle_seconds, seen.digest))[:most]
        return [await self._card(overview) for overview in newest]

    def _of_tenants(self) -> dict[str, list[Overview]]:
        """One look at the fleet for all who follow: a service may have thousands of chats."""
        now = time.monotonic()
        if self._looked is None or now - self._looked[0] > GAP_SECONDS / 2:
            found: dict[str, list[Overview]] = {}
            for seen in self._fleet.own_overview():
                if seen.chat is not None:
                    found.setdefault(seen.chat.tenant, []).append(seen)
            self._looked = (now, found)
        return self._looked[1]

    async def _card(self, seen: Overview) -> ChatCard:
        assert seen.chat is not None
        newest = await self._activity.newest(seen.chat)
        card: ChatCard = {
            "chat": seen.chat.id,
            "state": CONDITIONS[seen.state],
            "used": _used(seen, newest),
            "tool": "",
            "description": "",
            "running": False,
            "since": 0,
            "failed": False,
            "output": "",
            "picture": round(self._pictures.taken(seen.chat), 3),
        }
        if newest is not None:
            card["tool"] = newest.begun["tool"]
            card["description"] = one_line(newest.begun["description"] or "", _MAX_WORDS)
            card["running"] = newest.ended is None and seen.state is State.RUNNING
            card["since"] = newest.begun["at"]
            card["failed"] = newest.ended is not None and newest.ended["error"]
            card["output"] = (newest.output or (newest.ended["result"] if newest.ended else ""))[-_MAX_OUTPUT:]
        return card

    def _client(self, shows: Callable[[Chat], bool]) -> list[ClientSeen]:
        """The newest one, if there is any."""
        seen = self._clients.newest(shows)
        return [] if seen is None else [_client_seen(seen)]

    def _demo(self, chat: Chat) -> DemoState:
        found = self._demos.progress(chat)
        if found is None:
            return {"chat": chat.id, "state": "none", "step": 0, "steps": 0, "says": ""}
        return {
            "chat": chat.id, "state": found.state, "step": found.step, "steps": found.steps, "says": found.says,
        }  # fmt: skip

    def _take_pictures(self, cards: Sequence[ChatCard], tenant: str) -> None:
        """Of the browsers of the chats that are shown and up; of those of other members, these take them."""
        if self._is_over or (self._taking is not None and not self._taking.done()):
            return
        due = [
            chat
            for card in cards
            if card["state"] == "running"
            and self._fleet.has(chat := Chat(card["chat"], tenant))
            and self._pictures.is_due(chat, card["used"])
        ]
        if due:
            self._taking = start_task(self._take(due), name="pictures of browsers")

    async def _take(self, chats: Sequence[Chat]) -> None:
        with detached():  # it is nobody's request
            if any([await self._pictures.take(chat) for chat in chats]):
                self._news.tell()


def _client_seen(seen: SeenClient) -> ClientSeen:
    return {"name": seen.name, "chat": seen.chat.id, "at": round(seen.at)}


def _used(seen: Overview, newest: NewestCall | None) -> float:
    """By the newest call where one is known: an idle time grows with each look, and would be a change each time."""
    if newest is None:
        return round(time.time() - seen.idle_seconds, -1)
    return round(newest.begun["at"] + (newest.ended["seconds"] if newest.ended is not None else 0), 3)
