"""Two panels side by side: nothing lies under anything else, however narrow a pane is."""

from __future__ import annotations

import asyncio
import json

import pytest
from playwright.async_api import Browser, expect

from tests.browser import ground
from tests.conftest import absent
from tests.http_api.pages.visitor import LONG, House, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]

HIDDEN_CONTROLS = """() => [...document.querySelectorAll(".pane")].flatMap((pane) => {
  const box = pane.getBoundingClientRect();
  return [...pane.querySelectorAll(".bar button, .bar a, .bar input, .pane-close")].filter((control) => {
    const own = control.getBoundingClientRect();
    if (!own.width || !own.height) return false;
    const [x, y] = [own.left + own.width / 2, own.top + own.height / 2];
    const met = document.elementFromPoint(x, y);
    return own.right > box.right + 1 || !(control === met || control.contains(met));
  }).map((control) => `${pane.textContent.slice(0, 20)}: ${control.getAttribute("aria-label") ?? control.textContent}`);
})"""


@pytest.mark.parametrize("panes", [("terminal", "browser"), ("files", "terminal"), ("agents", "activity")])
@pytest.mark.parametrize("width", [1200, 760])
async def test_no_tool_of_a_pane_lies_under_another(
    house: House, browser: Browser, panes: tuple[str, str], width: int
) -> None:
    """The narrow window is where they lack room; the wide one takes every share in the long version alone."""
    await house.furnish("panes")
    await house.put("panes", "/mnt/user-data/outputs/a-name-that-is-long-enough-to-want-room.md", b"# words\n")
    async with visit(browser, f"{house.url}/login", width=width) as seen:
        for share in (0.5, 0.2, 0.8) if LONG or width == 760 else (0.2,):
            await seen.page.evaluate(
                "([panes, share]) => { localStorage['cubicle.panes'] = panes; localStorage['cubicle.share'] = share }",
                [json.dumps(panes), str(share)],
            )
            name = "a-name-that-is-long-enough-to-want-room.md" if "files" in panes else ""
            await seen.page.goto(f"{house.url}/preview/panes/{name}")
            await expect(seen.page.locator(".pane")).to_have_count(2)
            if "terminal" in panes:
                await expect(seen.page.get_by_role("button", name="Larger text")).to_be_visible()
            hidden = await seen.page.evaluate(HIDDEN_CONTROLS)
            for _ in range(300):  # a chip that changes its word moves the rest
                if not hidden:
                    break
                await asyncio.sleep(0.1)
                hidden = await seen.page.evaluate(HIDDEN_CONTROLS)
            assert hidden == []
        assert seen.errors == []


NO_POLLING = """
    const real = window.setInterval;
    window.setInterval = (work, every, ...rest) => (every === 15_000 ? 0 : real(work, every, ...rest));
"""


async def test_the_chips_follow_what_the_page_causes_and_sees(house: House, browser: Browser) -> None:
    """The look of every 15 s is taken away: it is not what they wait for."""
    if ground.ttyd_command() is None:
        absent("needs ttyd: install it, or build an image (make image)")
    await house.furnish("chips")
    async with visit(browser, "about:blank") as seen:
        await seen.page.add_init_script(NO_POLLING)
        await seen.page.goto(f"{house.url}/preview/chips/")
        chips = seen.page.get_by_role("status", name="What runs on the computer")
        await expect(chips).to_contain_text("Browser off")
        await expect(chips).to_contain_text("Terminal off")
        await seen.page.get_by_role("navigation").get_by_role("button", name="Browser").click()
        await seen.page.get_by_role("button", name="Start the browser").click()
        await expect(chips).to_contain_text("Browser on")
        # Another person opens the terminal, and the model runs a command.
        (await house.client.post("/terminal/chips/start-ttyd")).raise_for_status()
        await house.bash("chips", "true")
        await expect(chips).to_contain_text("Terminal on")
        (await house.client.post("/api/sandboxes/chips/stop")).raise_for_status()
        await expect(chips).to_have_text("Asleep")
        assert seen.errors == []
