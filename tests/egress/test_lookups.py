"""Name look-ups: cached, few at once for a chat, in turns between tenants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from cubicle.core.chat import Chat
from cubicle.egress.lookups import MAX_QUEUED_PER_CHAT, Addresses, Lookups, TooManyLookups

pytestmark = pytest.mark.anyio

HERE: Addresses = (ip_address("192.0.2.1"),)


class Resolver:
    """A resolver that answers when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.running = self.most = 0

    def __call__(self, host: str) -> Addresses:
        with self._lock:
            self.asked.append(host)
            self.running += 1
            self.most = max(self.most, self.running)
        self.answers.acquire()
        with self._lock:
            self.running -= 1
        if host.startswith("no"):
            raise OSError("no such name")
        return HERE


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    found = Resolver()
    yield found
    found.answers.release(10_000)


async def asked(resolver: Resolver, number: int) -> None:
    async with asyncio.timeout(30):
        while len(resolver.asked) < number:
            await asyncio.sleep(0.005)


async def test_a_name_is_asked_for_once_by_those_who_wait_and_for_a_while_after(resolver: Resolver) -> None:
    clock = Clock()
    lookups = Lookups(resolver, clock=clock)
    one, two, foreign = (lookups.of(chat) for chat in (Chat("1"), Chat("2"), Chat("1", "other")))
    waiting = [asyncio.create_task(look_up("a.example")) for look_up in (one, one, two)]  # type: ignore[arg-type]
    await asked(resolver, 1)
    resolver.answers.release(100)
    assert await asyncio.gather(*waiting) == [HERE] * 3
    assert await one("a.example") == HERE
    assert resolver.asked == ["a.example"]
    assert await foreign("a.example") == HERE
    assert resolver.asked == ["a.example"] * 2, "another tenant could tell what was looked up before"
    clock.now += 11
    await one("a.example")
    assert resolver.asked == ["a.example"] * 3
    lookups.close()


async def test_a_name_that_does_not_exist_is_kept_for_a_shorter_while(resolver: Resolver) -> None:
    clock = Clock()
    lookups = Lookups(resolver, clock=clock)
    resolver.answers.release(100)
    look_up = lookups.of(Chat("1"))
    for seconds, number in ((0, 1), (1, 1), (4, 2)):
        clock.now += seconds
        with pytest.raises(OSError):
            await look_up("no.example")
        assert len(resolver.asked) == number
    lookups.close()


async def test_a_chat_has_four_at_once_and_the_rest_wait(resolver: Resolver) -> None:
    lookups = Lookups(resolver)
    look_up = lookups.of(Chat("1"))
    flood = [asyncio.create_task(look_up(f"{number}.example")) for number in range(100)]  # type: ignore[arg-type]
    await asked(resolver, 4)
    other = asyncio.create_task(lookups.of(Chat("2"))("other.example"))  # type: ignore[arg-type]
    await asked(resolver, 5)
    assert resolver.asked[-1] == "other.example"
    resolver.answers.release(1000)
    assert await asyncio.gather(*flood, other) == [HERE] * 101
    assert resolver.most <= 5
    lookups.close()


async def test_tenants_take_turns_whoever_has_more_chats_and_names(resolver: Resolver) -> None:
    lookups = Lookups(resolver, threads=8)
    flood = [
        asyncio.create_task(lookups.of(Chat(f"{chat}"))(f"{number}.{chat}.example"))  # type: ignore[arg-type]
        for chat in range(20)
        for number in range(5)
    ]
    await asked(resolver, 4)
    others = [asyncio.create_task(lookups.of(Chat("1", tenant))(f"{tenant}.example")) for tenant in ("b", "c")]  # type: ignore[arg-type]
    await asked(resolver, 6)
    assert set(resolver.asked[4:]) == {"b.example", "c.example"}, "a tenant has half of the threads at most"
    resolver.answers.release(1000)
    await asyncio.gather(*flood, *others)
    assert not lookups._tenants
    assert not lookups._running_by_chat
    lookups.close()


async def test_what_nobody_waits_for_is_not_looked_up_and_too_much_is_refused(resolver: Resolver) -> None:
    lookups = Lookups(resolver)
    look_up = lookups.of(Chat("1"))
    flood = [asyncio.create_task(look_up(f"{number}.example")) for number in range(MAX_QUEUED_PER_CHAT + 4)]  # type: ignore[arg-type]
    await asked(resolver, 4)
    with pytest.raises(TooManyLookups):
        await look_up("more.example")
    for task in flood[4:]:
        task.cancel()
    await asyncio.gather(*flood[4:], return_exceptions=True)
    resolver.answers.release(1000)
    await asyncio.gather(*flood[:4])
    assert len(resolver.asked) == 4
    assert await look_up("more.example") == HERE
    lookups.close()


async def test_the_cache_is_bounded_and_one_tenant_does_not_push_out_another(resolver: Resolver) -> None:
    resolver.answers.release(100_000)
    lookups = Lookups(resolver, clock=Clock())
    await lookups.of(Chat("1", "quiet"))("kept.example")
    for number in range(1100):
        await lookups.of(Chat("1"))(f"{number}.example")
    assert len(lookups._cache) == 1025
    before = len(resolver.asked)
    await lookups.of(Chat("1", "quiet"))("kept.example")
    assert len(resolver.asked) == before
    lookups.close()
