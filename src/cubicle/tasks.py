"""Tasks outside a TaskGroup: the only place that makes one. Whoever starts a task here owns it, and ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()
"""The event loop keeps weak references only: a task that nobody else keeps could vanish in the middle of its work."""


def start_task(work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start work whose life is not a block of code, such as that between an `open` and a `close`.

    The caller keeps the task, cancels it when its time is over, and waits for its end. Where the life is a block, use
    asyncio.TaskGroup.
    """
    task = asyncio.create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


@asynccontextmanager
async def repeated(look: Callable[[], Awaitable[None] | None], seconds: float, *, name: str) -> AsyncIterator[None]:
    """Within the block, look every so many seconds. One that fails is logged, and the next comes all the same."""
    task = start_task(_repeat(look, seconds, name), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _repeat(look: Callable[[], Awaitable[None] | None], seconds: float, name: str) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            done = look()
            if done is not None:
                await done
        except Exception:
            log.exception("a look failed: %s", name)
