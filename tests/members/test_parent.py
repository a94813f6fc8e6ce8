"""The parent of workers and a signal that comes while one of them is being started."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cubicle import app, startup
from cubicle.cli import member, workers
from cubicle.cli.worker import settings_of
from cubicle.cli.workers import _Parent
from cubicle.isolation.runner import Report, Strength
from cubicle.isolation.startup_check import StartupCheck
from cubicle.machine.errors import NoSpace
from cubicle.settings import Settings, load


class _Process:
    def __init__(self) -> None:
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


class _Starting:
    """A worker; the signal comes before it can be given to it."""

    slot = 2

    def __init__(self, parent: _Parent, ready: bool = True) -> None:
        self._parent = parent
        self._is_ready = ready
        self.process = _Process()
        self.has_ended = False

    async def start(self) -> Any:
        self._parent._end()
        return self.process

    async def ready(self) -> bool:
        return self._is_ready

    async def wait(self) -> int:
        self.has_ended = True
        return 0 if self._is_ready else -signal.SIGTERM


class _NoProcess:
    """A worker for which no process is to be had at first, as where memory is short."""

    tries = 0

    def __init__(self, told: object, slot: int, lock: int, *, first: bool) -> None:
        self.slot = slot

    async def start(self) -> Any:
        _NoProcess.tries += 1
        if _NoProcess.tries < 3:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return _Process()

    async def ready(self) -> bool:
        return True

    async def kill_if_silent(self, limit: float) -> None:
        pass

    async def wait(self) -> int:
        return 0


async def test_a_worker_that_cannot_be_started_for_a_moment_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent would take the other workers, and all calls, with it."""
    monkeypatch.setattr(workers, "_Worker", _NoProcess)
    monkeypatch.setattr(workers, "_PAUSES", (0.0, 0.0))
    parent = _Parent(Settings(_env_file=None, data_dir=tmp_path), {}, 0)  # type: ignore[call-arg]
    keeping = asyncio.create_task(parent._keep(2, None))
    async with asyncio.timeout(20):
        while _NoProcess.tries < 4 and not keeping.done():
            await asyncio.sleep(0)
    parent._end()
    await keeping


def test_a_worker_that_starts_again_has_the_settings_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may be at work on `.env` at that moment, for the next start of the service."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ".env"
    file.write_text(f"DATA_DIR={tmp_path}\nWORKERS=2\nCOMMAND_TIMEOUT=60\nMCP_PATHS=/a,/b\nSINGLE_USER_MODE=false\n")
    settings = load(driver="memory")
    parent = _Parent(settings, {"port": 8099}, 0)
    for later in ("COMMAND_TIMEOUT=30\nMCP_API_KEY=another-key\n", "MCP_API_KEY='half a lin\n"):
        file.write_text(later)
        told = json.loads(json.dumps(parent._told))
        assert settings_of(told) == settings.model_copy(update={"port": 8099})


async def test_the_other_workers_wait_for_an_isolation_check_that_a_full_disk_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the first one lets no chat have a sandbox; of the others nothing would keep one."""
    space = asyncio.Event()

    async def prove() -> Report:
        if not space.is_set():
            raise NoSpace("The host is short of disk space.")
        return Report(Strength.NAMESPACES)

    chosen = load(driver="memory", data_dir=tmp_path / "data", image_dir=tmp_path / "images", pool_size=0)
    check = StartupCheck(chosen, prove)
    monkeypatch.setattr(app, "make_startup_check", lambda *_parts, **_named: check)
    monkeypatch.setattr(startup, "_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(member, "_LOOK_SECONDS", 0.02)
    told = asyncio.Event()
    async with app.running(chosen) as site:
        member.tell_when(site.state.is_checked, told.set)
        await asyncio.sleep(0.2)
        assert not told.is_set()
        space.set()
        async with asyncio.timeout(20):
            await told.wait()
        assert check.proof is not None


@pytest.mark.parametrize("ready", [True, False])
async def test_a_signal_during_the_first_start_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    """The worker may serve already; or the signal ends it, which is what was asked for."""
    parent = _Parent(Settings(_env_file=None, data_dir=tmp_path), {}, 0)  # type: ignore[call-arg]
    first = _Starting(parent, ready)
    monkeypatch.setattr(workers, "_Worker", lambda *_told, **_named: first)
    assert await parent.run() == 0
    assert first.has_ended


async def test_a_worker_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_words: object, **_named: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    worker = workers._Worker({}, 2, 0, first=False)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        await worker.start()
    assert os.listdir("/proc/self/fd") == before


async def test_a_signal_during_a_start_is_one_signal_to_each_worker(tmp_path: Path) -> None:
    """A second one would end the calls that run at the others."""
    parent = _Parent(Settings(_env_file=None, data_dir=tmp_path), {}, 0)  # type: ignore[call-arg]
    running: Any = _Process()
    parent._running[1] = running
    starting: Any = _Starting(parent)
    assert await parent._until_ready(starting) is None
    assert running.signals == [signal.SIGTERM]
    assert starting.process.signals == [signal.SIGTERM]
