"""An SVG that takes for ever to draw: the page goes on, gives it up and says so. A true Chromium."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from playwright.async_api import Browser, Page, expect

from tests.http_api.pages.visitor import House, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]
OUTPUTS = "/mnt/user-data/outputs"
DOT = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle cx="4" cy="4" r="4"/></svg>'
GIVEN_UP = "This picture took too long to draw, so it was given up."


def laughs(levels: int = 9, times: int = 10) -> bytes:
    """`times` to the power of `levels` squares, in less than 2 KB."""
    groups = "".join(
        f'<g id="a{i}">{f"<use href={chr(34)}#a{i - 1}{chr(34)}/>" * times}</g>' for i in range(1, levels + 1)
    )
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><defs><rect id="a0" width="1" height="1"/>'
    return f'{head}{groups}</defs><use href="#a{levels}"/></svg>'.encode()


async def longest_wait(page: Page, ending: asyncio.Event) -> float:
    """How long the page took at most to answer a question."""
    worst = 0.0
    while not ending.is_set():
        asked = time.monotonic()
        await page.evaluate("document.title")
        worst = max(worst, time.monotonic() - asked)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), 0.05)
    return worst


async def test_a_billion_uses_neither_hang_the_page_nor_go_unsaid(house: House, browser: Browser) -> None:
    bomb = laughs()
    assert len(bomb) < 2000
    await house.put("bomb", f"{OUTPUTS}/laughs.svg", bomb)
    await house.put("bomb", f"{OUTPUTS}/dot.svg", DOT)
    async with visit(browser, f"{house.url}/preview/bomb/") as seen:
        ending = asyncio.Event()
        await expect(seen.page.get_by_role("treeitem", name="laughs.svg")).to_be_visible()
        watch = asyncio.create_task(longest_wait(seen.page, ending))
        await seen.page.get_by_role("treeitem", name="laughs.svg").click()
        await expect(seen.page.get_by_text("Loading…")).to_be_visible()
        await expect(seen.page.get_by_text(GIVEN_UP)).to_be_visible()
        await expect(seen.page.locator("iframe.file-frame")).to_have_count(0)
        ending.set()
        assert await watch < 5  # it would be minutes; a busy machine takes a second
        await seen.page.get_by_role("treeitem", name="dot.svg").click()
        frame = seen.page.frame_locator("iframe.file-frame")
        await expect(frame.get_by_role("img", name="dot.svg")).to_be_visible()


async def test_a_broken_svg_says_so(house: House, browser: Browser) -> None:
    await house.put("broken", f"{OUTPUTS}/broken.svg", b"<svg><g>")
    async with visit(browser, f"{house.url}/preview/broken/broken.svg") as seen:
        await expect(seen.page.get_by_text("It may be damaged")).to_be_visible()
