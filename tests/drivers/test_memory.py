"""What is of the memory driver alone."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from cubicle.drivers.memory import MemoryDriver
from cubicle.sandbox.driver import State
from tests.support.emptying import leave


async def test_a_start_that_is_cancelled_leaves_nothing_that_cannot_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be cancelled: one that nobody waited for would start a sandbox when all had been removed."""
    entered, gate, launch = threading.Event(), threading.Event(), MemoryDriver._launch

    def slow(driver: MemoryDriver, place: Path) -> None:
        entered.set()
        assert gate.wait(100)
        launch(driver, place)

    monkeypatch.setattr(MemoryDriver, "_launch", slow)
    driver = MemoryDriver(tmp_path)
    await driver.open()
    try:
        starting = asyncio.create_task(driver.start("one", None))
        assert await asyncio.to_thread(entered.wait, 100)
        starting.cancel()
        await asyncio.sleep(0)
        assert not starting.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert [(seen.name, seen.state) for seen in await driver.list()] == [("one", State.RUNNING)]
    finally:
        gate.set()
        await leave(driver)


async def test_what_another_driver_is_making_is_left_alone(tmp_path: Path) -> None:
    """Several processes share the sandboxes; only one that is alone takes something half-made for left over."""
    first, second = MemoryDriver(tmp_path), MemoryDriver(tmp_path)
    await first.open()
    half_made = tmp_path / "memory" / "one.new"
    half_made.mkdir()
    await second.open()
    assert half_made.exists()
    assert await second.list() == []
    await second.close()
    await first.close()
    await first.open()
    assert not half_made.exists()
    await first.close()


async def test_a_sandbox_whose_start_was_not_written_down_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver was killed between the two. The next one finds the process by its arguments, and ends no other."""

    def killed_now(pid: int) -> int:
        raise ArithmeticError(str(pid))

    killed, following = MemoryDriver(tmp_path), MemoryDriver(tmp_path)
    await killed.open()
    await killed.start("kept", None)
    with monkeypatch.context() as patch, pytest.raises(ArithmeticError) as lost:
        patch.setattr("cubicle.drivers.memory._born", killed_now)
        await killed.start("lost", None)
    process = Path(f"/proc/{lost.value}/stat")
    assert process.exists()
    await killed.close()
    await following.open()
    try:
        assert not process.exists()
        states = {seen.name: seen.state for seen in await following.list()}
        assert states == {"kept": State.RUNNING, "lost": State.STOPPED}
        await following.start("lost", None)
    finally:
        await leave(following)
