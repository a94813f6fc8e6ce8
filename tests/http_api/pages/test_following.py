"""A person follows the model in the workspace: what it uses is shown by itself, and never under a wrong address."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from statistics import median

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.browser import ground
from tests.conftest import absent
from tests.http_api.pages.visitor import House, accessible, visit
from tests.support.load import IS_LOADED

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(300)]

COLOURS = {"red": "#f00", "green": "#0f0", "blue": "#00f"}
WATCH = """() => {
  // Every picture that a person could see is compared with the address above it, at each change of either.
  window.wrong = [];
  const look = () => {
    const canvas = document.querySelector(".live-picture canvas");
    const address = document.querySelector('input[aria-label="Address"]')?.value ?? "";
    if (!canvas || !canvas.width || document.querySelector(".live-blank")) return null;
    const [r, g, b] = canvas.getContext("2d").getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data;
    const colour = r > 200 && g < 90 && b < 90 ? "red" : g > 200 && r < 90 ? "green" : b > 200 && r < 90 ? "blue" : "";
    return { address, colour };
  };
  window.shown = () => look();
  const check = () => {
    const seen = look();
    const name = seen?.address.match(/(red|green|blue)\\.html/)?.[1];
    // A page that is being loaded has its new address before its first picture: what is wrong is another tab's.
    if (seen?.colour && name && seen.colour !== name) window.wrong.push([seen.colour, name, performance.now()]);
    requestAnimationFrame(check);
  };
  requestAnimationFrame(check);
}"""


@asynccontextmanager
async def model_of(house: House) -> AsyncIterator[Callable[[str], Awaitable[BrowserContext]]]:
    """The model's own connection to a chat's browser, as a script in the sandbox makes it."""
    async with async_playwright() as playwright:

        async def connect(chat: str) -> BrowserContext:
            browser = await playwright.chromium.connect_over_cdp(f"{house.url}/browser/{chat}")
            return browser.contexts[0]

        yield connect


async def sees(page: Page, name: str) -> float:
    """Seconds until the person sees this page, with its own address and its own picture."""
    began = time.monotonic()
    shown = None
    while time.monotonic() - began < 40:
        shown = await page.evaluate("window.shown()")
        if shown and shown["colour"] == name and f"{name}.html" in shown["address"]:
            return time.monotonic() - began
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} is not seen, but {shown}: {await page.locator('main').aria_snapshot()}")


async def furnished(house: House, chat: str) -> str:
    """The home folder of a chat that has a browser and a page of each colour."""
    if ground.browser_program() is None:
        absent("needs chromium: scripts/packages test")
    await house.furnish(chat)
    link = '<a id=link href=blue.html target=_blank style="position:fixed;top:0;left:0;font-size:40px">next</a>'
    for name, colour in COLOURS.items():
        await house.put(chat, f"~/{name}.html", f"<title>{name}</title><body bgcolor={colour}>{link}".encode())
    return (await house.bash(chat, "pwd")).strip().splitlines()[0]


async def follows_the_calls(house: House, page: Page, chat: str, folder: str) -> None:
    """A command while it runs, a file, and the browser that the model starts."""
    now, shown = page.locator(".now-line"), page.get_by_role("status", name="Shown now")
    await expect(page.get_by_role("region", name="Activity")).to_be_visible()
    running = asyncio.create_task(house.bash(chat, "echo it runs; sleep 4"))
    await expect(now).to_contain_text(re.compile(r"Working: test · 0:0[1-9]"))
    await expect(page).to_have_title(re.compile("^▶ test · "))
    await expect(page.get_by_role("group", name="Output of the command")).to_contain_text("it runs")
    await running
    await expect(now).to_contain_text("Idle since")
    await expect(page).to_have_title(re.compile("^Workspace"))
    await house.call(chat, "create_file", path=f"{folder}/report.md", file_text="# Numbers\n", description="Write it")
    await expect(shown).to_have_text("report.md")
    await house.bash(chat, "cubicle-browser")
    await expect(shown).to_have_text("Browser")


async def follows_the_tabs(page: Page, context: BrowserContext, address: str) -> list[float]:
    """Seconds until each tab was seen that the model used."""
    took = []
    first = context.pages[0]
    await first.goto(address.format("red"))
    took.append(await sees(page, "red"))
    second = await context.new_page()
    await second.goto(address.format("green"))
    took.append(await sees(page, "green"))
    await first.bring_to_front()
    took.append(await sees(page, "red"))
    await second.bring_to_front()
    took.append(await sees(page, "green"))
    await first.evaluate("0")  # to read is not to use
    async with context.expect_page() as opening:
        await first.click("#link")
    opened = await opening.value
    took.append(await sees(page, "blue"))
    await second.goto(f"{address.format('green')}?again")  # a tab in the background
    took.append(await sees(page, "green"))
    await opened.mouse.click(300, 300)
    took.append(await sees(page, "blue"))
    # A person looks at another tab without control, and follows again.
    await page.get_by_role("tab", name="red").first.click()
    await sees(page, "red")
    await page.get_by_role("button", name="Follow", exact=True).last.click()
    await sees(page, "blue")
    await opened.close()
    return took


async def test_the_workspace_follows_the_model_and_stays_where_a_person_wants(house: House, browser: Browser) -> None:
    chat = f"follow-{browser.browser_type.name}"
    folder = await furnished(house, chat)
    async with visit(browser, f"{house.url}/preview/{chat}/", first=True) as seen, model_of(house) as connect:
        page = seen.page
        await follows_the_calls(house, page, chat, folder)
        await page.evaluate(WATCH)
        context = await connect(chat)
        took = await follows_the_tabs(page, context, f"file://{folder}/{{}}.html")
        assert await page.evaluate("window.wrong") == []
        print("seconds:", [round(one, 2) for one in took])
        assert IS_LOADED or median(took) < 1
        # What a person chooses stays, until the one button.
        await page.get_by_role("navigation", name="Panels").get_by_role("button", name="Files").click()
        await context.pages[0].goto(f"file://{folder}/green.html")
        await house.bash(chat, "true")
        await expect(page.get_by_role("region", name="What the model uses")).to_have_count(0)
        await page.get_by_role("button", name="Follow the model").click()
        await context.pages[0].mouse.click(300, 300)
        await sees(page, "green")
        assert seen.errors == []
        await accessible(page)


async def test_two_people_hand_control_to_each_other_and_the_model_hears_of_it(house: House, browser: Browser) -> None:
    chat = f"hand-{browser.browser_type.name}"
    await house.furnish(chat)
    await house.bash(chat, "cubicle-browser")
    address = f"{house.url}/browser/{chat}/"
    async with visit(browser, address) as one, visit(browser, address, width=390) as two:
        await expect(one.page.get_by_text("2 watching")).to_be_visible()
        await one.page.get_by_role("button", name="2 watching").click()
        await one.page.get_by_label("Your name").fill("Ann")
        await one.page.get_by_role("button", name="Save the name").click()
        await one.page.get_by_role("button", name="Take control").click()
        await expect(one.page.get_by_text("You have control.")).to_be_visible()
        await two.page.get_by_role("button", name="Ask Ann for control").click()
        await one.page.get_by_role("button", name="Give control").click()
        await expect(two.page.get_by_text("You have control.")).to_be_visible()
        await two.page.get_by_label("Address").fill("about:blank")
        await two.page.get_by_label("Address").press("Enter")
        await two.page.get_by_role("button", name="Return control").click()
        await expect(one.page.get_by_role("button", name="Take control")).to_be_visible()
        said = await house.all_text(chat, "true")
        assert re.search(r"the user used the browser from \d\d:\d\d to \d\d:\d\d \(UTC\); now at about:blank", said)
        assert "the user used" not in await house.all_text(chat, "true")
        assert one.errors + two.errors == []
