"""The fair queue: whoever floods it leaves the others alone."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections import Counter
from collections.abc import Coroutine
from functools import partial

import pytest

from cubicle.fairness.fair_queue import MAX_TURN_SECONDS, FairQueue, LoopShare, current, metered, task_factory

pytestmark = pytest.mark.anyio


def work(seconds: float) -> None:
    """Keep the processor for so long."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


async def steps(count: int, seconds: float, done: list[str], name: str) -> None:
    for _ in range(count):
        work(seconds)
        done.append(name)
        await asyncio.sleep(0)


async def test_a_flood_of_one_tenant_leaves_the_other_its_half() -> None:
    queue, done = FairQueue(), []
    flood = [metered(steps(20, 0.001, done, "flood"), queue, LoopShare("a", f"chat{n}")) for n in range(20)]
    other = metered(steps(20, 0.001, done, "other"), queue, LoopShare("b"))
    await asyncio.gather(*map(run, [*flood, other]))
    behind = len(done) - done[::-1].index("other")
    assert done.count("other") == 20
    assert behind < 80, "the other tenant waited for the flood"


async def test_chats_of_a_tenant_take_turns() -> None:
    queue, done = FairQueue(), []
    many = [metered(steps(10, 0.001, done, "many"), queue, LoopShare("a", "many")) for _ in range(30)]
    one = metered(steps(10, 0.001, done, "one"), queue, LoopShare("a", "one"))
    await asyncio.gather(*map(run, [*many, one]))
    assert len(done) - done[::-1].index("one") < 60


async def test_who_takes_long_steps_pays_for_them() -> None:
    """Shares are of time, not of steps."""
    queue, done = FairQueue(), []
    long = [metered(steps(10, 0.01, done, "long"), queue, LoopShare("a")) for _ in range(4)]
    short = [metered(steps(50, 0.001, done, "short"), queue, LoopShare("b")) for _ in range(2)]
    await asyncio.gather(*map(run, [*long, *short]))
    last = len(done) - done[::-1].index("short")
    assert done[:last].count("long") <= 25


async def test_the_loop_turns_between_steps() -> None:
    """What is not in the queue waits for one turn, not for all that is in it."""
    queue, done = FairQueue(), []
    flood = asyncio.gather(*(run(metered(steps(5, 0.002, done, "a"), queue, LoopShare("a"))) for _ in range(50)))
    await asyncio.sleep(0)
    turns = 0
    while not flood.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100


async def test_steps_that_grow_longer_do_not_all_run_in_one_turn() -> None:
    """How many fit is judged by the steps before: those may have been short."""
    queue, share, turns = FairQueue(), LoopShare("a"), []
    turn = [0]

    def step(seconds: float) -> None:
        work(seconds)
        turns.append(turn[0])

    queue.charge(share, MAX_TURN_SECONDS)
    for seconds in [1e-5] * 200 + [0.003] * 60:
        queue.run(share, partial(step, seconds))
    while len(turns) < 260:
        turn[0] += 1
        await asyncio.sleep(0)
    long = Counter(turns[200:])
    assert max(long.values()) <= 2
    assert turns == sorted(turns)


@pytest.mark.parametrize("chats", [1, 50])
async def test_who_was_put_back_keeps_his_place(chats: int) -> None:
    queue, order = FairQueue(), list[int]()
    queue.charge(LoopShare("b"), MAX_TURN_SECONDS)

    def step(number: int) -> None:
        work(0.002)
        order.append(number)

    for number in range(50):
        queue.run(LoopShare("a", str(number % chats)), partial(step, number))
    while len(order) < 50:
        await asyncio.sleep(0)
    assert order == list(range(50))


async def test_what_waited_is_freed_at_once() -> None:
    class Work:
        def __call__(self) -> None:
            work(0.002)

    queue, share = FairQueue(), LoopShare("a")
    gc.disable()
    try:
        queue.charge(share, MAX_TURN_SECONDS)
        works = [Work() for _ in range(5)]
        left = [weakref.ref(each) for each in works]
        for each in works:
            queue.run(share, each)
        del each
        works.clear()
        for _ in range(20):
            await asyncio.sleep(0)
        assert [ref() for ref in left] == [None] * 5
    finally:
        gc.enable()


async def test_who_is_alone_does_not_wait() -> None:
    queue = FairQueue()

    async def answer() -> int:
        return 7

    alone = metered(answer(), queue, LoopShare("a"))
    with pytest.raises(StopIteration) as end:
        alone.send(None)
    assert end.value.value == 7


async def test_a_saving_of_the_past_is_worth_nothing() -> None:
    """A tenant that was quiet for long does not have the loop to itself for as long."""
    queue, done = FairQueue(), []
    for _ in range(20):
        queue.charge(LoopShare("busy"), 100.0)
        await asyncio.sleep(0)
    both = [
        metered(steps(20, 0.001, done, name), queue, LoopShare(name)) for name in ("busy", "fresh") for _ in range(3)
    ]
    await asyncio.gather(*map(run, both))
    assert done[:60].count("busy") > 15


async def test_a_cancelled_one_ends_while_it_waits_and_the_others_go_on() -> None:
    queue, seen = FairQueue(), []

    async def held() -> None:
        try:
            await asyncio.sleep(0)
            seen.append("ran")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.create_task(run(metered(held(), queue, LoopShare("a"))))
    await asyncio.sleep(0)
    queue.charge(LoopShare("a"), MAX_TURN_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
    await run(metered(asyncio.sleep(0), queue, LoopShare("a")))


async def test_what_a_cancelled_one_had_in_hand_is_freed_at_once() -> None:
    queue = FairQueue()

    class Body:
        pass

    async def held(body: Body) -> None:
        await asyncio.Event().wait()

    body = Body()
    seen = weakref.ref(body)
    task = asyncio.create_task(run(metered(held(body), queue, LoopShare("a"))))
    del body
    await asyncio.sleep(0)
    gc.disable()
    try:
        task.cancel()
        await asyncio.wait([task])
        del task
        await asyncio.sleep(0)
        assert seen() is None
    finally:
        gc.enable()


async def test_an_error_and_a_time_limit_come_through() -> None:
    queue = FairQueue()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("seen")

    async def hangs() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return ""

    with pytest.raises(ValueError, match="seen"):
        await run(metered(fails(), queue, LoopShare("a")))
    assert await run(metered(hangs(), queue, LoopShare("a"))) == "late"


async def test_plain_work_waits_for_its_turn_too() -> None:
    queue, done = FairQueue(), []
    queue.run(LoopShare("a"), lambda: (done.append(1), work(MAX_TURN_SECONDS)))  # type: ignore[arg-type, return-value]
    queue.run(LoopShare("a"), lambda: done.append(2))
    assert done == [1]
    async with asyncio.timeout(10):
        while len(done) < 2:
            await asyncio.sleep(0)


async def test_work_that_begins_more_work_does_not_do_it_at_once() -> None:
    """A packet that is looked at piece by piece asks for its next turn from within the one that it has."""
    queue, depth, deepest, left = FairQueue(), 0, 0, 50

    def piece() -> None:
        nonlocal depth, deepest, left
        depth += 1
        deepest = max(deepest, depth)
        left -= 1
        if left:
            queue.run(LoopShare("a"), piece)
        depth -= 1

    queue.run(LoopShare("a"), piece)
    async with asyncio.timeout(10):
        while left:
            await asyncio.sleep(0)
    assert deepest == 1


async def test_a_step_within_a_step_is_charged_once() -> None:
    queue, outer, inner = FairQueue(), LoopShare("outer"), LoopShare("inner")

    async def nested() -> None:
        await run(metered(steps(1, 0.02, [], ""), queue, inner))
        work(0.01)

    await run(metered(nested(), queue, outer))
    used = {name: tenant.used for name, tenant in queue._tenants.items()}
    assert 0.02 <= used["inner"] < 0.04
    assert 0.01 <= used["outer"] < 0.02


async def test_what_a_request_starts_waits_for_its_turns_too() -> None:
    """A request that starts tasks has no more of the loop than one that does not."""
    queue, done = FairQueue(), []

    async def starts_tasks() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(steps(10, 0.001, done, "flood"))

    async def request(work: Coroutine[object, object, None], share: LoopShare) -> None:
        current.set((queue, share))
        await run(metered(work, queue, share))

    loop = asyncio.get_running_loop()
    loop.set_task_factory(task_factory)
    try:
        flood = loop.create_task(request(starts_tasks(), LoopShare("a")))
        await loop.create_task(request(steps(20, 0.001, done, "other"), LoopShare("b")))
        assert done.count("flood") < 80, "the other tenant waited for the flood"
        await flood
    finally:
        loop.set_task_factory(None)
    assert done.count("flood") == 200


async def test_a_task_that_is_cancelled_before_its_turn_has_begun() -> None:
    """Its first step does not wait, as no task's does that nobody cancels before it ran."""
    queue, seen = FairQueue(), []

    async def child() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    async def parent() -> None:
        current.set((queue, LoopShare("a")))
        task = asyncio.get_running_loop().create_task(child())
        queue.charge(LoopShare("a"), 2 * MAX_TURN_SECONDS)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    loop = asyncio.get_running_loop()
    loop.set_task_factory(task_factory)
    try:
        await loop.create_task(parent())
    finally:
        loop.set_task_factory(None)
    assert seen == ["begun", "ended"]


async def run(coroutine: object) -> object:
    return await coroutine  # type: ignore[misc]
