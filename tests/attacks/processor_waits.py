"""How long a process was ready to run and had no processor: the kernel says it (`schedstat`), and for how long a host took
the processors away (`steal` of /proc/stat). A worker imports this, and nothing of the product: that takes seconds."""

from __future__ import annotations

import os

_STOLEN = "stolen"


def waited_for_processor(pid: int | str = "self", thread: str = "") -> float:
    """Seconds that a process's main thread, or another one, was ready to run and could not."""
    try:
        with open(f"/proc/{pid}/task/{thread}/schedstat" if thread else f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def all_waited(pid: int | str = "self") -> dict[str, float]:
    """Of each thread; the main one is the first. And what the host of a virtual machine took from all processors."""
    waited = {thread: waited_for_processor(pid, thread) for thread in os.listdir(f"/proc/{pid}/task")}
    return {**waited, _STOLEN: _stolen()}


def _stolen() -> float:
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def waited_since(before: dict[str, float], now: dict[str, float]) -> float:
    """Seconds that the main thread waited for a processor, or one did that may have held the interpreter's lock, and
    those that a host took."""
    waited = [then - before.get(thread, 0.0) for thread, then in now.items() if thread != _STOLEN]
    return max(waited, default=0.0) + now[_STOLEN] - before[_STOLEN]
