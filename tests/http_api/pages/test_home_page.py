"""The home page in a real browser, for a person who signed in: connect a client, see it come, copy the key, try the demo."""

from __future__ import annotations

import asyncio
import re
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.http_api.pages import visitor
from tests.http_api.pages.visitor import KEY, House, accessible, screens, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with visitor.house(tmp_path_factory.mktemp("home"), key=KEY) as house:
        yield house


async def sign_in(page: Page, house: House) -> None:
    await page.get_by_label("API key").fill(KEY)
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{house.url}/")
    await expect(page.get_by_text("MCP URL")).to_be_visible()


async def test_a_newcomer_connects_a_client_and_sees_it_come(house: House, browser: Browser) -> None:
    async with visit(browser, house.url + "/") as seen:
        page = seen.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await expect(page).to_have_title("Sign in · Cubicle")
        await sign_in(page, house)
        await expect(page).to_have_title("Cubicle")
        assert KEY not in await page.content()
        await page.get_by_role("tab", name="Claude Code").press("ArrowRight")
        await page.get_by_role("tab", name="Claude Desktop").press("ArrowRight")
        await expect(page.get_by_role("tab", name="Cursor")).to_be_focused()
        await expect(page.get_by_role("tabpanel")).to_contain_text(f"{house.url}/mcp")
        await page.get_by_role("button", name="Copy the text for Cursor").click()
        await expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert f"Bearer {KEY}" in await page.evaluate("navigator.clipboard.readText()")
        assert KEY not in await page.content(), "the key is copied, not shown"
        await page.get_by_role("button", name="Show the key").click()
        await expect(page.get_by_role("tabpanel")).to_contain_text(KEY)

        waiting = page.get_by_text("waiting for the first client…")
        await expect(waiting).to_be_visible()
        await house.bash("first-chat", "echo '<img src=x onerror=alert(1)>'; echo done")
        await expect(page.locator(".client-line .chip.ok")).to_be_visible()
        await expect(waiting).to_have_count(0)
        card = page.get_by_role("listitem").filter(has_text="first-chat")
        await expect(card).to_contain_text("<img src=x onerror=alert(1)>")
        await page.get_by_role("link", name="Watch the chat first-chat").click()
        await expect(page).to_have_url(f"{house.url}/preview/first-chat/")
        await expect(page).to_have_title("Workspace · first-chat · Cubicle")
        await page.get_by_title("Cubicle: home").click()
        await expect(page).to_have_url(f"{house.url}/")
        assert (seen.dialogs, seen.errors) == ([], [])


@pytest.mark.parametrize(("scheme", "width"), screens(1280, both=True))
async def test_the_home_page_keeps_nobody_out(house: House, browser: Browser, width: int, scheme: str) -> None:
    await house.bash("axe", "echo some output")
    async with visit(browser, house.url + "/", width=width, scheme=scheme) as seen:  # type: ignore[arg-type]
        page = seen.page
        await sign_in(page, house)
        await expect(page.get_by_role("listitem").first).to_be_visible()
        await accessible(page)
        wide = await page.evaluate(
            "[...document.querySelectorAll('main, body')].map(e => e.scrollWidth - e.clientWidth)"
        )
        assert wide == [0, 0]


async def test_a_demo_that_cannot_go_on_says_why(house: House, browser: Browser) -> None:
    """Here is no browser for it. A person sees each step, and where it stopped."""
    async with visit(browser, house.url + "/") as seen:
        page = seen.page
        await sign_in(page, house)
        await page.get_by_role("button", name="Play the demo").click()
        await expect(page).to_have_url(re.compile("/preview/demo/"))
        await expect(page.get_by_text(re.compile("The demo stopped. Open the page in the browser"))).to_be_visible()
        await expect(page.locator(".call").filter(has_text="Draw the chart").first).to_be_visible()
        await page.get_by_role("link", name="Back to the start").click()
        await expect(page.get_by_text("The last one stopped: Open the page")).to_be_visible()
        assert seen.errors == []


@pytest.mark.oci
@pytest.mark.serial
async def test_the_first_minute_from_the_start_to_take_control(tmp_path: Path) -> None:
    """scripts/screenshot fails if it takes more than 60 seconds; it clicks only what is visible, and keeps pictures."""
    walk = await asyncio.create_subprocess_exec(
        ROOT / "scripts/screenshot", "--keep", tmp_path, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
    )
    said, _ = await walk.communicate()
    assert walk.returncode == 0, said.decode()
    assert '"Take control" is there' in said.decode()
    assert {"home.png", "demo.png", "over.png", "control.png", "home-phone.png"} <= {f.name for f in tmp_path.iterdir()}
