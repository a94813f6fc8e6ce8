"""The pages as a person meets them, before the whole service."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext, async_playwright, expect

from tests.browser import pages
from tests.browser.whole import KEY, Whole, drawn, drive, live, point, shows, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.oci, pytest.mark.timeout(300), pytest.mark.usefixtures("chromium")]


async def test_a_person_types_in_the_terminal_page(whole: Whole, person: BrowserContext) -> None:
    one = await terminal(person, whole, "t1")
    await one.keyboard.type("mine=$((40+2)); echo sum-$mine\n")
    await shows(one, "sum-42")
    two = await terminal(person, whole, "t1")
    await shows(two, "sum-42")
    await two.keyboard.type("echo two-$((1+1))\n")
    await shows(one, "two-2")
    await one.close()
    await two.close()
    again = await terminal(person, whole, "t1")
    await again.keyboard.type("echo kept-$mine\n")
    await shows(again, "kept-42")
    await again.close()


async def test_a_click_in_the_live_page_reaches_the_sandboxs_browser(whole: Whole, person: BrowserContext) -> None:
    await whole.put("b1", "page.html", pages.BUTTON)
    page = await live(person, whole, "b1")
    await drive(page, "file:///home/assistant/page.html", "Button")
    await drawn(page, 200, 150)
    await page.mouse.click(*await point(page, 200, 150))
    await expect(page.get_by_role("tab", name="clicked 1")).to_be_visible(timeout=60_000)
    titles = [one["title"] for one in (await whole.http.get("/browser/b1/status")).json()["pages"]]
    assert titles == ["clicked 1"]
    await page.close()


async def test_playwright_connects_with_the_bearer_header(whole: Whole, chrome: Browser) -> None:
    assert (await whole.http.post("/browser/b1/start")).status_code == 200
    async with httpx.AsyncClient(base_url=whole.base, timeout=60, trust_env=False, verify=False) as stranger:
        assert (await stranger.get("/browser/b1/json")).status_code == 401
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(
            f"{whole.base}/browser/b1", headers={"Authorization": f"Bearer {KEY}"}, timeout=90_000
        )
        browser.contexts[0].set_default_timeout(90_000)
        page = await browser.contexts[0].new_page()
        await page.goto("data:text/html,<h1>hello</h1>")
        assert await page.inner_text("h1") == "hello"
        await page.close()
        await browser.close()
