"""The freezer of cgroups: a frozen sandbox neither runs nor, with cgroups of version 1, dies of a signal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from cubicle.drivers.common.completion import complete
from cubicle.drivers.oci.host import CGROUPS

P = ParamSpec("P")
R = TypeVar("R")

_FREEZE_SECONDS = 0.1
"""A process that is held up in the kernel cannot be halted: then the others run on, too."""
_POLL_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class _Switch:
    """One of the trees that can halt a cgroup."""

    tree: Path
    file: str
    frozen: str
    running: str
    seen_in: str
    """The file that says whether all are halted, and how it says so."""
    sign: str

    def folder(self, cgroup: str) -> Path:
        return self.tree / cgroup.lstrip("/")


_SWITCHES = (
    _Switch(CGROUPS, "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"),
    _Switch(CGROUPS / "unified", "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"),
    _Switch(CGROUPS / "freezer", "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"),
)


class FreezerThreads:
    """Of their own: whoever thaws a sandbox must not wait for threads that are busy with disks."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "freezer")

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Nobody goes on before it has ended."""
        return await complete(self._run(partial(function, *args, **kwargs)))

    async def _run(self, function: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        self._threads.shutdown(wait=False)
        self._threads = ThreadPoolExecutor(2, "freezer")  # it may be opened again


def thaw(cgroup: str) -> bool:
    """Let the processes of a cgroup run on; whether they were frozen."""
    frozen = False
    for switch in _SWITCHES:
        with contextlib.suppress(OSError):
            path = switch.folder(cgroup) / switch.file
            if path.read_text().strip() != switch.running:
                path.write_text(switch.running)
                frozen = True
    return frozen


def is_frozen(cgroup: str) -> bool:
    """Whether it is frozen, or about to be."""
    for switch in _SWITCHES:
        with contextlib.suppress(OSError):
            if (switch.folder(cgroup) / switch.file).read_text().strip() != switch.running:
                return True
    return False


def freeze(cgroup: str, guest: int) -> bool:
    """Halt the guest, if it is the only process of its cgroup; whether it is halted.

    Looked at before and after: who is halted can no longer start anything.
    """
    switch = next((each for each in _SWITCHES if _processes(each, cgroup) == {guest}), None)
    if switch is None:
        return False
    try:
        (switch.folder(cgroup) / switch.file).write_text(switch.frozen)
        if _is_halted(switch, cgroup) and _processes(switch, cgroup) == {guest}:
            return True
    except OSError:
        pass
    thaw(cgroup)
    return False


def _is_halted(switch: _Switch, cgroup: str) -> bool:
    """Wait until all processes are; False when that takes too long."""
    until = time.monotonic() + _FREEZE_SECONDS
    while switch.sign not in (switch.folder(cgroup) / switch.seen_in).read_text().splitlines():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _processes(switch: _Switch, cgroup: str) -> set[int]:
    try:
        return set(map(int, (switch.folder(cgroup) / "cgroup.procs").read_text().split()))
    except (OSError, ValueError):
        return set()


def give_memory_back(cgroup: str) -> None:
    """Have the kernel take back what it can of a cgroup's memory: caches, and the rest where there is swap.

    That it could not take all of it is no error.
    """
    name = cgroup.lstrip("/")
    with contextlib.suppress(OSError):
        one = CGROUPS / name
        if (one / "memory.reclaim").exists():
            (one / "memory.reclaim").write_text((one / "memory.current").read_text())
    with contextlib.suppress(OSError):
        (CGROUPS / "memory" / name / "memory.force_empty").write_text("1")
