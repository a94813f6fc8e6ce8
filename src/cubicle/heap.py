"""Memory that is free goes back to the system.

The C library keeps freed blocks for itself: after the first block of some megabytes it takes all others of that size
from its heap, which shrinks at its end only. A flood of large messages would stay as a process of hundreds of MB.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from cubicle.tasks import start_task

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of mallopt(3)."""
_LARGE = 1024**2
"""Blocks from this size on are mapped one by one, and given back when they are freed."""
_SPARE = 16 * 1024**2
_GROWTH, _WORTH = 24 * 1024**2, 4 * 1024**2
_SECONDS = 5.0
_PAGE = resource.getpagesize()
_libc = ctypes.CDLL(None)


def keep_small() -> None:
    """Set the C library up, before much was allocated. Others than glibc have no such options, nor this habit."""
    with contextlib.suppress(AttributeError):
        _libc.mallopt(_MMAP_THRESHOLD, _LARGE)
        _libc.mallopt(_TRIM_THRESHOLD, _SPARE)


@contextlib.asynccontextmanager
async def kept_small() -> AsyncIterator[None]:
    """Meanwhile free pages in the middle of the heap are given back, too, when the process has grown."""
    if not hasattr(_libc, "malloc_trim"):
        yield
        return
    trimming = start_task(_trim_now_and_then(), name="heap")
    try:
        yield
    finally:
        trimming.cancel()
        await asyncio.gather(trimming, return_exceptions=True)


async def _trim_now_and_then() -> None:
    lowest = sys.maxsize
    while True:
        await asyncio.sleep(_SECONDS)
        with contextlib.suppress(OSError, RuntimeError):  # no free descriptor or thread just now
            now = await asyncio.to_thread(_resident)
            lowest = min(now, lowest) if now <= lowest + _GROWTH else await _trim(now, lowest)


async def _trim(now: int, lowest: int) -> int:
    """Give back what is free; what is resident at the least from now on."""
    # An idle service makes no rubbish that would have it collect what a flood left. Here, not on a thread: what is
    # found may belong to the event loop.
    gc.collect()
    await asyncio.to_thread(_libc.malloc_trim, 0)  # without the interpreter's lock; milliseconds for hundreds of MB
    left = await asyncio.to_thread(_resident)
    return lowest if now - left > _WORTH else left  # as long as it helps it is done again


def _resident() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE
