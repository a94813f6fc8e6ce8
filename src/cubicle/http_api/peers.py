"""What members tell each other beside the requests of clients: the sandboxes that each has, and its metrics."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from cubicle.core.chat import BadChatId, Chat
from cubicle.http_api.forwarding import Forwarder, MemberGone
from cubicle.machine.errors import SandboxError
from cubicle.members.records import NoRecords
from cubicle.sandbox.driver import State
from cubicle.sandbox.slot import Overview
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

SANDBOXES = b"/members/sandboxes"
METRICS = b"/members/metrics"
TAKE = b"/members/take"
"""Own the chat whose digest the query is: it was left this moment."""
_LOOK_SECONDS = 1.0
_SECONDS_A_ROW = 0.002
"""Of thousands it is asked less often."""
_ASK_SECONDS = 5.0
_MAX_ANSWER = 64 << 20
_MAX_OFFERS = 16
"""At once: whoever takes a chat connects to its sandbox."""
_OFFER_SECONDS = 10.0
"""What others do not take in this time, they take when they next look for chats that nobody has."""


class Peers:
    """Asks the others every second for their sandboxes, and keeps what they said last."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._seen: dict[str, Sequence[Overview]] = {}

    def sandboxes(self) -> Iterable[Overview]:
        """Those of the other members."""
        return (overview for rows in self._seen.values() for overview in rows)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        task = start_task(self._follow(), name="peers")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def ask(self, target: bytes) -> dict[str, bytes]:
        """What each of the other members answers; of one that does not, nothing."""
        others = await self._forwarder.owners.others()
        answers = await asyncio.gather(*(self._ask(holder, target) for holder in others))
        return {holder: answer for holder, answer in zip(others, answers, strict=True) if answer is not None}

    async def offer(self, digests: Collection[str]) -> None:
        """Have others take the chats that this member has left. Of one that takes none, whoever is asked for it does.
        Raises NoRecords."""
        others = await self._forwarder.owners.others() if digests else ()
        gate = asyncio.Semaphore(_MAX_OFFERS)

        async def offer(digest: str) -> None:
            async with gate:
                await self._ask(others[int(digest[-8:], 16) % len(others)], TAKE + b"?" + digest.encode())

        if others:
            with suppress(TimeoutError):
                async with asyncio.timeout(_OFFER_SECONDS):
                    await asyncio.gather(*map(offer, digests))

    async def _ask(self, holder: str, target: bytes) -> bytes | None:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return await self._forwarder.ask(holder, target, _MAX_ANSWER)
        except (MemberGone, NoRecords, SandboxError, TimeoutError) as error:
            log.debug("a member does not answer: %s", error)
            return None

    async def _follow(self) -> None:
        while True:
            try:
                answers = await self.ask(SANDBOXES)
                self._seen = await asyncio.to_thread(_all_parsed, answers)
            except NoRecords as error:
                log.warning("the sandboxes of other members are not known: %s", error)
            except Exception:
                log.exception("the sandboxes of other members are not known")
            await asyncio.sleep(max(_LOOK_SECONDS, sum(map(len, self._seen.values())) * _SECONDS_A_ROW))


async def told(own: Callable[[], Sequence[Overview]]) -> bytes:
    """This member's sandboxes, for another."""
    seen = own()
    return await asyncio.to_thread(lambda: json.dumps(list(map(_fields, seen)), separators=(",", ":")).encode())


def _fields(seen: Overview) -> list[Any]:
    chat = [seen.chat.id, seen.chat.tenant] if seen.chat is not None else None
    numbers = [seen.leases, round(seen.idle_seconds, 1), seen.age_seconds]
    return [chat, seen.digest, seen.name, seen.state.value, seen.reason, *numbers]


def parsed(body: bytes) -> Sequence[Overview]:
    """What another member told. Raises ValueError."""
    try:
        return [_overview(*fields) for fields in json.loads(body)]
    except (TypeError, LookupError, BadChatId) as error:
        raise ValueError(f"it cannot be read: {error}") from None


def _all_parsed(answers: Mapping[str, bytes]) -> dict[str, Sequence[Overview]]:
    """One of another version may tell something else: of it nothing is known, and of the others all."""
    found = {}
    for holder, body in answers.items():
        try:
            found[holder] = parsed(body)
        except ValueError as error:
            log.warning("the sandboxes of another member are not known: %s", error)
    return found


def _overview(
    chat: Sequence[str] | None, digest: str, name: str, state: str, reason: str, leases: int, idle: float, age: float
) -> Overview:
    return Overview(Chat(*chat) if chat else None, digest, name, State(state), reason, leases, idle, age)
