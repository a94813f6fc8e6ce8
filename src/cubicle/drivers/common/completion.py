"""Work that is never left half-done: a caller who is cancelled hears of it when the work has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from cubicle.tasks import start_task

P = ParamSpec("P")
R = TypeVar("R")


async def complete(work: Coroutine[Any, Any, R], undo: Callable[[R], None] | None = None) -> R:
    """Await to the end even when cancelled, as often as that may be; then undo what was made, and pass it on."""
    task = start_task(work, name="work that is not left half-done")
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if undo is not None and task.exception() is None:
        undo(task.result())
    raise cancelled


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run what blocks in a thread, which cannot be cancelled: so nobody goes on before it has ended."""
    return await complete(asyncio.to_thread(function, *args, **kwargs))
