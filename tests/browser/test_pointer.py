"""Whoever drives is told the shape of the mouse, however slowly the page answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from cubicle.browser.cdp import CdpError
from cubicle.browser.pointer import Pointer
from cubicle.browser.tab import Tab
from cubicle.browser.viewer import Viewer

pytestmark = pytest.mark.anyio


class BusyTab(Tab):
    """Does not answer the first times; what a DevTools connection would do is not needed."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.asked: list[tuple[float, float]] = []
        self.closed = False

    @property
    def reachable(self) -> bool:
        return not self.closed

    async def cursor_at(self, x: float, y: float) -> str:
        self.asked.append((x, y))
        await asyncio.sleep(0)
        if len(self.asked) <= self._failures:
            raise CdpError("The browser did not answer within 1 s.")
        return "grab"


class Follower:
    """A pointer whose work is awaited here."""

    def __init__(self, *, wanted: bool = True) -> None:
        self.wanted = wanted
        self.work: list[Coroutine[Any, Any, None]] = []
        self.pointer = Pointer(self.work.append, lambda viewer, tab: self.wanted)

    async def ends(self) -> None:
        async with asyncio.timeout(10):
            while self.work:
                await self.work.pop()


async def test_a_move_that_a_busy_page_did_not_answer_is_asked_again() -> None:
    follower, tab, viewer = Follower(), BusyTab(2), Viewer("v1")
    follower.pointer.move(viewer, tab, 30, 40)
    await follower.ends()
    assert tab.asked == [(30, 40)] * 3
    assert await viewer.next() == '{"type": "cursor", "cursor": "grab"}'


async def test_a_newer_place_is_asked_instead_of_one_that_failed() -> None:
    follower, tab, viewer = Follower(), BusyTab(1), Viewer("v1")
    follower.pointer.move(viewer, tab, 1, 1)
    ending = asyncio.ensure_future(follower.ends())
    await asyncio.sleep(0)
    follower.pointer.move(viewer, tab, 2, 2)
    await ending
    assert tab.asked == [(1, 1), (2, 2)]
    assert await viewer.next() == '{"type": "cursor", "cursor": "grab"}'


@pytest.mark.parametrize(("wanted", "closed"), [(False, False), (True, True)])
async def test_nothing_is_asked_again_that_nobody_wants_or_nothing_can_answer(wanted: bool, closed: bool) -> None:
    follower, tab = Follower(wanted=wanted), BusyTab(9)
    tab.closed = closed
    follower.pointer.move(Viewer("v1"), tab, 1, 1)
    await follower.ends()
    assert len(tab.asked) == 1
    follower.pointer.move(Viewer("v1"), tab, 2, 2)  # and the next move begins anew
    assert follower.work
    await follower.ends()
