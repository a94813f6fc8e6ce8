"""What other members of the service have for the home page: each tells what it has of one tenant (docs/replicas.md)."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

from pydantic import TypeAdapter, ValidationError

from cubicle.chat.news import News
from cubicle.core.chat import BadChatId, Chat
from cubicle.http_api.home_models import OtherHome
from cubicle.tasks import start_task

HOME = b"/members/home"
AGAIN_SECONDS = 1.0
"""The others are asked no more often for one tenant, however many people of it look."""
_FIRST_SECONDS = 2.0
"""Whoever comes first waits for the others for no longer."""
_MAX_KEPT = 256

Ask = Callable[[bytes], Awaitable[Mapping[str, bytes]]]
"""What each of the other members answers to a GET; of one that does not answer, nothing."""

_other_home = TypeAdapter(OtherHome)


@dataclass(slots=True)
class _Kept:
    found: Sequence[OtherHome] = ()
    asked: float = float("-inf")
    task: asyncio.Task[None] | None = None


class HomeElsewhere:
    """Keeps what the others said last; one that does not answer holds up nobody who looks again."""

    def __init__(self, ask: Ask, news: News) -> None:
        self._ask = ask
        self._news = news
        self._kept: OrderedDict[Chat, _Kept] = OrderedDict()

    async def of(self, demo: Chat) -> Sequence[OtherHome]:
        """What they have of the tenant of this chat, and of the demo in it."""
        is_new = demo not in self._kept
        kept = self._kept.setdefault(demo, _Kept())
        self._kept.move_to_end(demo)
        if kept.task is None and time.monotonic() - kept.asked > AGAIN_SECONDS:
            kept.task = start_task(self._look(demo, kept), name="home of other members")
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        if is_new and kept.task is not None:
            await asyncio.wait([kept.task], timeout=_FIRST_SECONDS)
        return kept.found

    async def close(self) -> None:
        tasks = [kept.task for kept in self._kept.values() if kept.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look(self, demo: Chat, kept: _Kept) -> None:
        try:
            query = urlencode({"tenant": demo.tenant, "demo": demo.id})
            answers = await self._ask(HOME + b"?" + query.encode())
            found = [home for body in answers.values() if (home := _parsed(body)) is not None]
            if found != kept.found:
                kept.found = found
                self._news.tell()
        finally:
            kept.asked, kept.task = time.monotonic(), None


def asked_for(query: bytes) -> Chat:
    """The demo's chat that another member asks for. Raises BadChatId."""
    named = parse_qs(query.decode("ascii", "replace"), keep_blank_values=True)
    return Chat(named.get("demo", [""])[0], named.get("tenant", [""])[0])


def merged(own: OtherHome, others: Sequence[OtherHome], shows: Callable[[str], bool]) -> OtherHome:
    """All of them together. A chat that was just handed over is told of by two: what this member says counts."""
    cards = {card["chat"]: card for card in own["chats"]}
    clients, demos = list(own["clients"]), [own["demo"]]
    for other in others:
        for card in other["chats"]:
            if shows(card["chat"]):
                cards.setdefault(card["chat"], card)
        clients += [one for one in other["clients"] if shows(one["chat"])]
        demos.append(other["demo"])
    demo = max(demos, key=lambda one: (one["state"] == "playing", one["state"] != "none"))
    return {"chats": list(cards.values()), "clients": clients, "demo": demo}


def _parsed(body: bytes) -> OtherHome | None:
    """What a member told; None if it is of another version, and told something else."""
    try:
        found = _other_home.validate_json(body)
        for card in found["chats"]:
            Chat(card["chat"])
        for client in found["clients"]:
            Chat(client["chat"])
    except (ValidationError, BadChatId):
        return None
    return found
