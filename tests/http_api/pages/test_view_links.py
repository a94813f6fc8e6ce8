"""What a view link does not allow is not offered by the pages, which say so; the service refuses it anyway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from tests.http_api.pages.test_admin import picture
from tests.http_api.pages.visitor import KEY, House, accessible, house, visit, widths

pytestmark = [pytest.mark.anyio, pytest.mark.real]

NOTICE = "Your link lets you look. You cannot type, click, upload, delete or undo with it."


@pytest.fixture(scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with house(tmp_path_factory.mktemp("locked"), key=KEY) as running:
        await running.put("seen", "/mnt/user-data/outputs/a.txt", b"hello")
        yield running


async def link(locked: House, access: str, tail: str = "") -> str:
    made = await locked.client.post(f"/api/links/seen?access={access}&hours=1")
    assert made.status_code == 201
    url: str = made.json()["url"]
    page, _, query = url.partition("?")
    at = page[page.index("/preview/") :]
    return f"{locked.url}{tail or at}?{query}"


async def test_a_view_link_says_what_it_allows_and_offers_nothing_else(locked: House, browser: Browser) -> None:
    async with visit(browser, await link(locked, "view"), width=1200) as seen:
        page = seen.page
        await expect(page.get_by_text(NOTICE)).to_be_visible()
        await page.get_by_role("navigation", name="Panels").get_by_role("button", name="Files").click()
        await expect(page.get_by_role("treeitem", name="a.txt")).to_be_visible()
        await expect(page.get_by_role("button", name="Upload files")).to_have_count(0)
        await page.evaluate(
            """() => { const data = new DataTransfer(); data.items.add(new File(["x"], "x.txt"));
            window.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})); }"""
        )
        await expect(page.get_by_text("Your link lets you look: it cannot upload.")).to_be_visible()
        assert (await locked.client.get("/api/uploads/seen")).json()["files"] == []
        await page.get_by_role("button", name="Browser", exact=True).click()
        await expect(page.locator(".live-panel").get_by_text("View only")).to_be_visible()
        await expect(page.get_by_role("button", name="Take control")).to_have_count(0)
        await page.get_by_role("button", name="Terminal", exact=True).click()
        await expect(page.locator(".terminal-panel").get_by_text("View only")).to_be_visible()
        await expect(page.get_by_role("button", name="Paste (Ctrl+Shift+V)")).to_have_count(0)
        await picture(page, "view-only")


@pytest.mark.parametrize("width", widths(390, 1200))
async def test_a_view_link_keeps_nobody_out(locked: House, browser: Browser, width: int) -> None:
    async with visit(browser, await link(locked, "view"), width=width) as seen:
        await expect(seen.page.get_by_text("View only.")).to_be_visible()
        await accessible(seen.page)
        assert await seen.page.evaluate("document.documentElement.scrollWidth") <= width
        await picture(seen.page, f"view-only-{width}")


@pytest.mark.parametrize("panel", ["terminal", "browser"])
async def test_a_panel_on_its_own_page_says_it_too(locked: House, browser: Browser, panel: str) -> None:
    async with visit(browser, await link(locked, "view", f"/{panel}/seen/")) as seen:
        await expect(seen.page.get_by_text(NOTICE)).to_be_visible()


async def test_a_control_link_offers_everything(locked: House, browser: Browser) -> None:
    async with visit(browser, await link(locked, "control"), width=1200) as seen:
        page = seen.page
        await page.get_by_role("navigation", name="Panels").get_by_role("button", name="Files").click()
        await expect(page.get_by_role("button", name="Upload files")).to_be_visible()
        await expect(page.get_by_text("View only")).to_have_count(0)
