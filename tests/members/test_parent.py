"""The parent of workers and a signal that comes while one of them is being started."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from cubicle.cli.workers import _Parent
from cubicle.settings import Settings


class _Process:
    def __init__(self) -> None:
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


class _Starting:
    """A worker; the signal comes before it can be given to it."""

    slot = 2

    def __init__(self, parent: _Parent) -> None:
        self._parent = parent
        self.process = _Process()

    async def start(self) -> Any:
        self._parent._end()
        return self.process

    async def ready(self) -> bool:
        return True


async def test_a_signal_during_a_start_is_one_signal_to_each_worker(tmp_path: Path) -> None:
    """A second one would end the calls that run at the others."""
    parent = _Parent(Settings(_env_file=None, data_dir=tmp_path), {}, 0)  # type: ignore[call-arg]
    running: Any = _Process()
    parent._running[1] = running
    starting: Any = _Starting(parent)
    assert await parent._until_ready(starting) is None
    assert running.signals == [signal.SIGTERM]
    assert starting.process.signals == [signal.SIGTERM]
