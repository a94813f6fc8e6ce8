"""Turns: a burst of calls leaves the loop free between any two of them."""

from __future__ import annotations

import asyncio

from cubicle.mcp_api.turns import Turns


class Ticks:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._tick()

    def _tick(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> None:
        self._handle.cancel()


async def test_no_two_of_a_burst_share_a_turn_and_they_keep_their_order() -> None:
    turns, ticks = Turns(), Ticks()
    passed: list[tuple[int, int]] = []

    async def call(number: int) -> None:
        await turns.next()
        passed.append((number, ticks.count))

    await asyncio.gather(*(call(number) for number in range(50)))
    ticks.stop()
    assert [number for number, _ in passed] == list(range(50))
    assert len({tick for _, tick in passed}) == 50
    assert passed[-1][1] - passed[0][1] < 60  # and none is lost between them


async def test_who_is_alone_does_not_wait() -> None:
    turns = Turns()
    for _ in range(3):
        alone = turns.next()
        try:
            alone.send(None)
        except StopIteration:
            await asyncio.sleep(0)
        else:
            raise AssertionError("it waited")
        await asyncio.sleep(0)


async def test_who_gives_up_waiting_takes_no_turn() -> None:
    turns = Turns()
    passes, leaves, follows = (asyncio.create_task(turns.next()) for _ in range(3))
    await asyncio.sleep(0)
    assert passes.done()
    assert not leaves.done()
    leaves.cancel()
    async with asyncio.timeout(60):
        await follows
        assert leaves.cancelled()
        await turns.next()
