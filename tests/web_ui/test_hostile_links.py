"""No link of a hostile file leads the page to another chat: a true Chromium."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.live.whole import LISTEN, told
from tests.web_ui.visitor import House, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]
expect.set_options(timeout=60_000)

OUTPUTS = "/mnt/user-data/outputs"
OUT = "This link leads out of the files of this chat."


@pytest.mark.parametrize("embed", ["", "?embed=1"])
async def test_a_link_with_an_encoded_way_up_leads_to_no_other_chat(
    house: House, browser: Browser, embed: str
) -> None:
    await house.put("victim", f"{OUTPUTS}/secret.txt", b"secret of another chat")
    link = "..%2f..%2ffiles%2fvictim%2fsecret.txt"
    await house.put("walker", f"{OUTPUTS}/way.md", f"# Way\n\n[click]({link}) [here](near.md)".encode())
    await house.put("walker", f"{OUTPUTS}/near.md", b"# There\n")
    async with visit(browser, f"{house.url}/login") as seen:
        await seen.page.add_init_script(LISTEN)
        asked: list[str] = []
        seen.page.on("request", lambda request: asked.append(request.url))
        await seen.page.goto(f"{house.url}/preview/walker/way.md{embed}")
        frame = seen.page.frame_locator("iframe.file-frame")
        await frame.get_by_role("link", name="click").click()
        await told(seen.page, OUT)
        assert seen.page.url == f"{house.url}/preview/walker/way.md{embed}"
        await frame.get_by_role("link", name="here").click()
        await expect(frame.get_by_role("heading", name="There")).to_be_visible()
        assert [url for url in asked if "victim" in url] == []
