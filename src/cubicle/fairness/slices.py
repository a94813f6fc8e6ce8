"""Works on what a client sent for one turn of the event loop, in slices."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

from cubicle.fairness.fair_queue import MAX_TURN_SECONDS


def feed_slices(data: bytearray, feed: Callable[[bytes], None], may_go_on: Callable[[], bool], first: int) -> int:
    """Feed as much of the data as a turn has time for, and return how much that was.

    The slices get larger while they are cheap: a long message is, many small ones are not.
    """
    ends = thread_time() + MAX_TURN_SECONDS
    start, size = 0, first
    while start < len(data) and may_go_on():
        feed(bytes(data[start : start + size]))
        start += size
        if (left := ends - thread_time()) < 0:
            break
        size = size * 2 if left > MAX_TURN_SECONDS / 2 else first
    return start
