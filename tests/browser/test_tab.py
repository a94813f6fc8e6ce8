"""A tab whose browser refuses to begin pictures, as Chromium does while a page changes its document."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cubicle.browser import messages
from cubicle.browser import tab as tab_module
from cubicle.browser.cdp import CdpConnection, CdpError
from cubicle.browser.tab import Tab


class Browser:
    """Answers as many calls as it is told to, and refuses the others."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.starts: list[asyncio.Future[dict[str, Any]]] = []

    def ask(self, method: str, session: str = "", **params: Any) -> asyncio.Future[dict[str, Any]]:
        self.asked.append((method, params.get("maxWidth")))
        self.starts.append(asyncio.get_running_loop().create_future())
        return self.starts[-1]

    def tell(self, method: str, session: str = "", **params: Any) -> None:
        self.asked.append((method, params.get("ignore")))


def tab_of(browser: Browser) -> Tab:
    tab = Tab(cast(CdpConnection, browser), "T")
    tab.session = "S"
    return tab


async def test_a_refused_start_is_asked_again_with_the_same_width() -> None:
    browser = Browser()
    tab = tab_of(browser)
    tab.cast(960)
    tab.begin_again()
    assert len(browser.starts) == 1  # not answered yet
    browser.starts[-1].set_exception(CdpError("Not attached to an active page"))
    assert not tab.pictured
    tab.begin_again()
    assert browser.asked == [
        ("Page.stopScreencast", None),
        ("Emulation.setFocusEmulationEnabled", None),
        ("Page.startScreencast", 960),
        ("Page.startScreencast", 960),
    ]
    browser.starts[-1].set_result({})
    assert tab.pictured
    tab.begin_again()
    assert len(browser.starts) == 2


async def test_frames_of_an_earlier_start_are_told_apart() -> None:
    browser = Browser()
    tab = tab_of(browser)
    tab.cast(1280)
    browser.starts[-1].set_result({})
    tab.hush()
    assert not tab.pictured
    tab.cast(640)
    assert not tab.pictured  # the browser may still send those of 16 pixels
    browser.starts[-1].set_result({})
    assert tab.pictured


async def test_a_refused_watch_is_asked_again() -> None:
    browser = Browser()
    tab = tab_of(browser)
    tab.hush()
    watching = asyncio.create_task(tab.watched())
    await asyncio.sleep(0)
    browser.starts[-1].set_exception(CdpError("Not attached to an active page"))
    await watching
    tab.begin_again()
    assert browser.asked == [("Page.stopScreencast", None), *[("Page.startScreencast", 16)] * 2]


async def test_the_picture_of_a_still_page_is_asked_for_until_it_came_and_once_more() -> None:
    browser = Browser()
    tab = tab_of(browser)
    tab.cast(1280)
    for _ in range(2):  # none comes
        tab.confirm()  # not answered yet
        browser.starts[-1].set_result({})
        tab.confirm()
    assert len(browser.starts) == 3
    browser.starts[-1].set_result({})
    tab.acknowledge(1)
    tab.confirm()
    assert len(browser.starts) == 4
    browser.starts[-1].set_result({})
    tab.acknowledge(2)
    tab.confirm()
    assert len(browser.starts) == 4


async def test_the_picture_of_a_page_that_moves_is_not_asked_for_again() -> None:
    browser = Browser()
    tab = tab_of(browser)
    tab.cast(1280)
    browser.starts[-1].set_result({})
    tab.acknowledge(1)
    tab.acknowledge(1)
    tab.confirm()
    assert len(browser.starts) == 1


WHEEL = messages.Wheel(type="wheel", x=1, y=1, dx=0, dy=9)
MOVE = messages.Mouse(type="mouse", event="move", x=1, y=1)
TAKEN: tuple[str, Any] = ("Input.setIgnoreInputEvents", False)
IGNORED: tuple[str, Any] = ("Input.setIgnoreInputEvents", True)
INPUT: tuple[str, Any] = ("Input.dispatchMouseEvent", None)


async def test_a_page_takes_input_until_a_wheel_is_answered_and_no_longer() -> None:
    browser = Browser()
    tab = tab_of(browser)
    tab.guard(True)
    tab.mouse(MOVE)
    assert browser.asked == [IGNORED, TAKEN, INPUT, IGNORED]
    browser.asked.clear()
    tab.wheel(WHEEL)
    tab.mouse(MOVE)
    tab.wheel(WHEEL)
    browser.starts[-3].set_result({})  # the first of the two
    await asyncio.sleep(0)
    assert browser.asked == [TAKEN, INPUT, INPUT, INPUT]
    browser.starts[-1].set_result({})
    await asyncio.sleep(0)
    assert browser.asked == [TAKEN, INPUT, INPUT, INPUT, IGNORED]


async def test_an_answer_that_comes_after_control_is_given_back_shuts_nothing() -> None:
    browser = Browser()
    tab = tab_of(browser)
    tab.guard(True)
    tab.wheel(WHEEL)
    tab.guard(False)
    browser.starts[0].set_result({})
    await asyncio.sleep(0)
    assert browser.asked == [IGNORED, TAKEN, INPUT, ("Input.setIgnoreInputEvents", None)]
    tab.guard(True)
    assert browser.asked[-1] == IGNORED


async def test_a_page_that_hangs_takes_the_input_of_others_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tab_module, "_INPUT_LIMIT", -1.0)
    browser = Browser()
    tab = tab_of(browser)
    tab.guard(True)
    tab.wheel(WHEEL)
    assert browser.asked[-1] == INPUT
    tab.tend()
    assert browser.asked[-1] == IGNORED
    browser.starts[0].set_result({})
    await asyncio.sleep(0)
    assert browser.asked == [IGNORED, TAKEN, INPUT, IGNORED]
