"""The routes of the home page: what it shows, how clients connect, and the demo."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Self

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from cubicle.browser.frame_recorder import FrameRecorder
from cubicle.browser.last_pictures import LastPictures
from cubicle.chat.clients import Clients
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.core.identity import Identity
from cubicle.core.keys import KeyRing
from cubicle.core.problem import Problem
from cubicle.fairness.fair_slots import FairSlots
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import HttpRefusal, refuse
from cubicle.http_api.held_response import HeldResponse
from cubicle.http_api.home_elsewhere import Ask, HomeElsewhere, asked_for
from cubicle.http_api.home_feed import HomeFeed, Watcher, watcher_of
from cubicle.http_api.home_models import Connection, DemoState, ShownKey
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import Settings
from cubicle.tools.demo import Demos, NotNow
from cubicle.tools.registry import Registry

_STREAMS = Chat("home")
_NEVER_KEPT = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class HomeRoutes:
    """For people who signed in: their own tenant's, whatever else they may see."""

    def __init__(
        self,
        settings: Settings,
        ring: KeyRing,
        feed: HomeFeed,
        clients: Clients,
        demos: Demos,
        pictures: LastPictures,
    ) -> None:
        self._settings = settings
        self._ring = ring
        self._feed = feed
        self.clients = clients
        self._demos = demos
        self._pictures = pictures
        self._streams = FairSlots(total=1024, of_tenant=256, of_chat=256)

    @classmethod
    def build(
        cls,
        settings: Settings,
        ring: KeyRing,
        fleet: Fleet,
        registry: Registry,
        recorder: FrameRecorder,
        ask_others: Ask | None = None,
    ) -> Self:
        """With the parts behind the page. `ask_others`: the other members of the service."""
        activity = registry.activity
        clients, demos = Clients(activity.news), Demos(registry, activity.news)
        pictures = LastPictures(fleet, recorder.store)
        elsewhere = HomeElsewhere(ask_others, activity.news) if ask_others is not None else None
        feed = HomeFeed(fleet, activity, clients, demos, pictures, elsewhere)
        return cls(settings, ring, feed, clients, demos, pictures)

    async def __aenter__(self) -> Self:
        await self._demos.__aenter__()
        await self._feed.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._feed.__aexit__(*exception)
        await self._demos.__aexit__(*exception)

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        for part in (self.clients, self._demos, self._pictures):
            part.forget(chat)

    async def get(self, request: Request) -> Response:
        return JSONResponse(await self._feed.now(watcher_of(request)), headers=_NEVER_KEPT)

    async def events(self, request: Request) -> Response:
        watcher = watcher_of(request)
        return HeldResponse(lambda: self._held(watcher))

    @asynccontextmanager
    async def _held(self, watcher: Watcher) -> AsyncIterator[Response]:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        chat = Chat(_STREAMS.id, watcher.identity.tenant)
        async with self._streams.hold(chat, wait=False), aclosing(self._stream(watcher)) as stream:
            yield StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _stream(self, watcher: Watcher) -> AsyncGenerator[str]:
        yield "retry: 2000\n\n"
        async with aclosing(self._feed.follow(watcher)) as followed:
            async for part in followed:
                yield ": nothing new\n\n" if part is None else f"data: {json.dumps(part)}\n\n"

    async def tell_member(self, query: bytes) -> bytes:
        """What another member is told for its home page. Raises BadChatId."""
        return json.dumps(await self._feed.own(asked_for(query))).encode()

    def end_streams(self) -> None:
        """Those who follow would hold up the end of the service."""
        self._feed.end()

    async def picture(self, request: Request) -> Response:
        """The last picture of a chat's browser, as it was taken for the page: to ask for it takes none."""
        found = await self._pictures.of(chat_of(request))
        if found is None:
            raise refuse(404, "No picture of this chat's browser is kept.")
        return Response(found, media_type="image/jpeg", headers=_NEVER_KEPT)

    async def connection(self, request: Request) -> Response:
        base = self._settings.public_base_url.rstrip("/") or str(request.base_url).rstrip("/")
        answer = Connection(
            url=base + self._settings.mcp_paths[0], locked=bool(self._ring), knows_key=bool(self._key_for(request))
        )
        return JSONResponse(answer, headers=_NEVER_KEPT)

    async def key(self, request: Request) -> Response:
        """The key itself, for the person who signed in with it; by POST, which the audit log tells of."""
        key = self._key_for(request)
        if not key:
            raise refuse(404, "The service keeps a digest of your key only: have it from whoever made it.")
        return JSONResponse(ShownKey(key=key), headers=_NEVER_KEPT)

    def _key_for(self, request: Request) -> str:
        """MCP_API_KEY, for a person whose sign-in it made. Of the keys in API_KEYS_FILE only digests are known."""
        identity: Identity = request.state.identity
        key = self._settings.mcp_api_key
        found = self._ring.opens(key) if key and identity.signed_in else None
        return key if found is not None and found.id == identity.key_id else ""

    async def demo(self, request: Request) -> Response:
        """Begin the demo, or join the one that plays."""
        watcher = watcher_of(request)
        caller = Caller(watcher.demo_chat, email=watcher.identity.user, identity=watcher.identity)
        try:
            found = self._demos.play(caller)
        except NotNow as reason:
            raise HttpRefusal(Problem(429, str(reason), {"Retry-After": str(reason.seconds)})) from None
        state = DemoState(chat=caller.chat.id, state=found.state, step=found.step, steps=found.steps, says=found.says)
        return JSONResponse(state, 202, headers=_NEVER_KEPT)
