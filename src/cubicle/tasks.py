"""Tasks outside a TaskGroup: the only place that makes one. Whoever starts a task here owns it, and ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

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
