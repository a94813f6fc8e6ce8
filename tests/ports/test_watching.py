"""Followers of a chat's ports: one look for all of them, and none when nobody follows."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing

import pytest

from cubicle.core.chat import Chat
from cubicle.ports import watching
from cubicle.ports.watching import PortWatches

A, B = Chat("a"), Chat("b")


class Looks:
    """What is seen, and how often somebody looked."""

    def __init__(self) -> None:
        self.count: dict[Chat, int] = {}
        self.now = 1
        self.fault: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self, chat: Chat) -> int:
        self.count[chat] = self.count.get(chat, 0) + 1
        await self.answers.wait()
        if self.fault is not None:
            raise self.fault
        return self.now


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_LOOK_SECONDS", 0.01)


def tasks() -> int:
    return sum(task.get_name().startswith("ports of ") for task in asyncio.all_tasks())


async def test_all_who_follow_a_chat_share_one_look() -> None:
    looks = Looks()
    watches = PortWatches(looks)
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        followed = [await stack.enter_async_context(aclosing(watches.follow(A, 60))) for _ in range(50)]
        assert [await anext(each) for each in followed] == [1] * 50
        assert tasks() == 1
        looks.now = 2
        before = looks.count[A]
        assert [await anext(each) for each in followed] == [2] * 50
        assert looks.count[A] - before < 10
        late = await stack.enter_async_context(aclosing(watches.follow(A, 60)))
        assert await anext(late) == 2
        other = await stack.enter_async_context(aclosing(watches.follow(B, 60)))
        assert await anext(other) == 2
        assert tasks() == 2
    assert tasks() == 0
    count = dict(looks.count)
    await asyncio.sleep(0.05)
    assert looks.count == count


async def test_nothing_is_told_without_a_change_but_a_heartbeat() -> None:
    looks = Looks()
    async with asyncio.timeout(60), aclosing(PortWatches(looks).follow(A, 0.1)) as followed:
        assert await anext(followed) == 1
        assert [await anext(followed) for _ in range(2)] == [None, None]
        assert looks.count[A] > 2
        looks.answers.clear()  # a sandbox that does not answer keeps no heartbeat back
        assert await anext(followed) is None
        looks.now = 2
        looks.answers.set()
        async for seen in followed:
            if seen is not None:
                assert seen == 2
                break


async def test_the_last_who_leaves_ends_the_look_also_when_cancelled() -> None:
    looks = Looks()
    looks.answers.clear()
    watches = PortWatches(looks)

    async def follow() -> None:
        async for _ in watches.follow(A, 60):
            pass

    async with asyncio.timeout(60):
        async with asyncio.TaskGroup() as group:
            first, second = group.create_task(follow()), group.create_task(follow())
            while not looks.count:
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
            assert tasks() == 1
            second.cancel()
        assert tasks() == 0


async def test_the_end_of_the_service_ends_all_who_follow() -> None:
    watches = PortWatches(Looks())
    async with asyncio.timeout(60):
        async with aclosing(watches.follow(A, 60)) as followed:
            assert await anext(followed) == 1
            watches.end()
            assert [seen async for seen in followed] == []
        assert [seen async for seen in watches.follow(B, 60)] == []
        assert tasks() == 0


async def test_a_look_that_fails_ends_the_streams_and_the_next_one_starts_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = Looks()
    watches = PortWatches(looks)
    async with asyncio.timeout(60), aclosing(watches.follow(A, 60)) as followed:
        assert await anext(followed) == 1
        looks.fault = KeyError("nobody foresaw this")
        assert [seen async for seen in followed] == []
        assert "not followed any more" in caplog.text
        looks.fault = None
        async with aclosing(watches.follow(A, 60)) as again:
            assert await anext(again) == 1
