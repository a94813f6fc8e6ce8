"""Quick moves into cgroups change nothing of where the service is, and end with the start."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from cubicle.drivers.oci import cgroup_moves
from cubicle.drivers.oci.cgroup_moves import CgroupMoves

pytestmark = pytest.mark.anyio


def where() -> str:
    return Path("/proc/self/cgroup").read_text()


async def test_this_process_stays_where_it_is() -> None:
    before = await asyncio.to_thread(where)
    async with CgroupMoves().quick():
        await asyncio.sleep(0.1)
    assert await asyncio.to_thread(where) == before


async def test_one_start_sees_to_it_for_all_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[threading.Event] = []

    def keep(over: threading.Event) -> None:
        kept.append(over)
        assert over.wait(30)

    monkeypatch.setattr(cgroup_moves, "_keep_quick", keep)
    moves = CgroupMoves()
    async with moves.quick(), moves.quick():
        pass
    async with moves.quick():
        pass
    assert [over.is_set() for over in kept] == [True, True]


async def test_a_host_without_these_files_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_moves, "_CGROUPS", tmp_path)
    await asyncio.to_thread(cgroup_moves._keep_quick, threading.Event())
    assert not list(tmp_path.iterdir())
