"""Looks that come again and again, until their block ends."""

from __future__ import annotations

import asyncio

from cubicle.tasks import repeated


async def test_one_that_fails_is_followed_by_the_next_and_none_comes_after_the_end() -> None:
    looks, third = [0], asyncio.Event()

    def look() -> None:
        looks[0] += 1
        if looks[0] == 3:
            third.set()
        raise ValueError("it cannot be read")

    async with repeated(look, 0.001, name="watch something"):
        await asyncio.wait_for(third.wait(), 10)
    after = looks[0]
    await asyncio.sleep(0.05)
    assert looks[0] == after
