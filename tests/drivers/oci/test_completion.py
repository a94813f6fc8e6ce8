"""A cancelled caller waits for what it began."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cubicle.drivers.common.completion import complete, in_thread


async def test_a_thread_is_waited_for_though_cancelled_twice():
    entered, gate, ended = threading.Event(), threading.Event(), []

    def work():
        entered.set()
        gate.wait(10)
        ended.append(True)

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(entered.wait, 10)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_what_a_cancelled_caller_never_got_is_undone():
    undone = []

    async def work():
        await asyncio.sleep(0.01)
        return "made"

    task = asyncio.create_task(complete(work(), undone.append))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == ["made"]


async def test_an_error_of_the_work_is_the_callers():
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
