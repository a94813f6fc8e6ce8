"""A file that was opened while the service was away is shown when it is back."""

from __future__ import annotations

import base64
import re

import pytest
from playwright.async_api import Browser, Page, expect

from tests.http_api.pages.visitor import House, accessible, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]

OUTPUTS = "/mnt/user-data/outputs"
READS = re.compile(r"/files/|/api/chats/[^/]+/raw/")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
REST = [("words.txt", "proxy"), ("page.html", "offline"), ("dot.png", "proxy")]


async def _text(page: Page) -> None:
    await expect(page.frame_locator("iframe.file-frame").locator(".cm-content")).to_contain_text("green words")


async def _page(page: Page) -> None:
    await expect(page.frame_locator("iframe.file-frame.page").get_by_text("green page")).to_be_visible()


async def _picture(page: Page) -> None:
    await expect(page.get_by_role("img", name="dot.png")).to_have_js_property("naturalWidth", 1)


@pytest.mark.parametrize(
    ("name", "away"),
    [
        ("words.txt", "offline"),
        ("page.html", "proxy"),
        ("dot.png", "offline"),
        *(pytest.param(*more, marks=pytest.mark.long) for more in REST),
    ],
)
async def test_an_open_file_recovers_by_itself(house: House, browser: Browser, name: str, away: str) -> None:
    await house.put("recover", f"{OUTPUTS}/words.txt", b"green words")
    await house.put("recover", f"{OUTPUTS}/page.html", b"<p>green page")
    await house.put("recover", f"{OUTPUTS}/dot.png", PIXEL)
    async with visit(browser, f"{house.url}/preview/recover/") as seen:
        page = seen.page
        row = page.get_by_role("treeitem", name=name)
        await expect(row).to_be_visible()
        if away == "offline":
            await page.context.set_offline(True)
        else:
            await page.route(READS, lambda route: route.fulfill(status=503, body="starting"))
        await row.click()
        await expect(page.get_by_role("heading", name="The file cannot be read now")).to_be_visible()
        await expect(page.get_by_role("button", name="Try again")).to_be_visible()
        await accessible(page)
        if away == "offline":
            await page.context.set_offline(False)
        else:
            await page.unroute(READS)
        await {"words.txt": _text, "page.html": _page, "dot.png": _picture}[name](page)
        await expect(page.get_by_role("heading", name="The file cannot be read now")).to_have_count(0)
