"""Everything a person can do in the live view's page, done in a real browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright, expect

from tests.browser import pages
from tests.browser.whole import KEY, Whole, drawn, drive, live, point

pytestmark = [pytest.mark.anyio, pytest.mark.oci, pytest.mark.timeout(300), pytest.mark.usefixtures("chromium")]

ADDRESS = "file:///home/assistant/page.html"
MORE = """<a href="data:text/plain,words" download="report.txt"
 style="position:absolute;left:800px;top:100px;width:200px;height:60px;background:#9cf">download</a>
<div contenteditable id=words oninput="document.title='wrote '+this.textContent"
 style="position:absolute;left:800px;top:300px;width:300px;height:40px;background:#cfc"></div>
<script>addEventListener('wheel', e => document.title = e.deltaY > 0 ? 'down' : 'up');
addEventListener('contextmenu', e => { e.preventDefault(); document.title = 'menu' });
field.oninput = () => document.title = 'field ' + field.value;
new PerformanceObserver((_, seen) => { seen.disconnect(); document.title = 'Button' }).observe({type: 'paint', buffered: true})
</script>"""
BUTTON = pages.BUTTON.replace("<title>Button", "<title>Not painted") + MORE
"""It has its title when it is painted: what is pressed before that, Chromium throws away."""


@pytest.fixture
async def page(whole: Whole, person: BrowserContext) -> AsyncIterator[Page]:
    """The live view, driven, with a page of buttons and fields in it."""
    await whole.put("hands", "page.html", BUTTON)
    await whole.put("hands", "other.html", "<title>Other</title><body style='background:#ccf'>")
    page = await live(person, whole, "hands")
    await drive(page, "file:///home/assistant/other.html", "Other")
    await go(page, ADDRESS, "Button")
    await drawn(page, 200, 150)
    yield page
    await page.close()


async def go(page: Page, address: str, title: str) -> None:
    bar = page.get_by_label("Address")
    await bar.fill(address)
    await bar.press("Enter")
    await titled(page, title)


async def titled(page: Page, title: str) -> None:
    await expect(page.get_by_role("tab", name=re.compile(rf"^(In use )?{re.escape(title)}$"))).to_be_visible(
        timeout=60_000
    )


async def press(page: Page, x: float, y: float) -> None:
    await page.mouse.click(*await point(page, x, y))


async def test_the_canvas_has_the_pages_cursor(page: Page) -> None:
    canvas = page.get_by_label("Picture of the computer's browser")
    for x, y, shape in ((450, 115, "text"), (850, 130, "pointer"), (700, 600, "default")):
        await page.mouse.move(*await point(page, x, y))
        await expect(canvas).to_have_css("cursor", shape, timeout=60_000)


async def test_a_list_and_a_day_are_chosen_in_the_pages_own_popups(page: Page) -> None:
    await press(page, 200, 315)
    options = page.get_by_label("Options of the list in the page")
    await expect(options.get_by_role("option")).to_have_text(["one", "two", "three"])
    await options.select_option("two")
    await page.get_by_role("button", name="Choose").click()
    await titled(page, "chose two")
    await expect(options).to_have_count(0)
    await press(page, 450, 315)
    await page.get_by_label("Value of the field in the page").fill("2026-11-15")
    await page.get_by_role("button", name="Set", exact=True).click()
    await titled(page, "day 2026-11-15")


async def test_a_script_that_asks_is_answered_in_a_dialog(page: Page) -> None:
    await press(page, 150, 420)
    dialog = page.get_by_role("dialog", name="The page asks for text")
    await expect(dialog).to_contain_text("Your name?")
    await dialog.get_by_label("Your answer").fill("Zoë")
    await dialog.get_by_role("button", name="OK").click()
    await titled(page, "said Zoë")
    await expect(dialog).to_have_count(0)


async def test_a_file_is_given_to_the_page_and_kept_in_the_uploads(page: Page, whole: Whole) -> None:
    await press(page, 450, 415)
    picked = {"name": "paper ü.txt", "mimeType": "text/plain", "buffer": b"for the page"}
    await page.get_by_label("Files for the page").set_input_files(picked)  # type: ignore[arg-type]
    await titled(page, "file paper ü.txt")
    assert await whole.bash("hands", "cat '/mnt/user-data/uploads/paper ü.txt'") == "for the page"


async def test_a_download_is_told_and_lies_in_the_outputs(page: Page, whole: Whole) -> None:
    await press(page, 850, 130)
    await expect(page.get_by_text("Downloaded report.txt to the chat's outputs.")).to_be_visible(timeout=60_000)
    assert await whole.bash("hands", "cat /mnt/user-data/outputs/report.txt") == "words"


async def test_letters_of_every_script_arrive_typed_composed_and_pasted(page: Page) -> None:
    await press(page, 450, 115)
    await page.keyboard.type("höhe é")
    await titled(page, "field höhe é")
    keyboard = await page.context.new_cdp_session(page)
    for text in ("に", "にほ", "日本語"):
        await keyboard.send(
            "Input.imeSetComposition", {"text": text, "selectionStart": len(text), "selectionEnd": len(text)}
        )
    await titled(page, "field höhe é日本語")
    await keyboard.send("Input.insertText", {"text": "日本語"})
    await page.keyboard.press("Backspace")
    await titled(page, "field höhe é日本")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.evaluate("navigator.clipboard.writeText(' pasted ✓')")
    await page.keyboard.press("Control+V")
    await titled(page, "field höhe é日本 pasted ✓")
    await page.keyboard.press("Control+A")
    await page.keyboard.press("Control+X")
    await titled(page, "field")
    async with asyncio.timeout(60):  # the text is told beside the title
        while await page.evaluate("navigator.clipboard.readText()") != "höhe é日本 pasted ✓":
            await asyncio.sleep(0.1)
    await press(page, 900, 320)
    await page.keyboard.type("ça")
    await titled(page, "wrote ça")


async def test_tabs_and_the_ways_between_pages(page: Page) -> None:
    await press(page, 200, 150)
    await titled(page, "clicked 1")
    await page.get_by_role("button", name="Reload").click()
    await titled(page, "Button")
    await page.get_by_role("button", name="Back", exact=True).click()
    await titled(page, "Other")
    await expect(page.get_by_label("Address")).to_have_value("file:///home/assistant/other.html")
    await page.get_by_role("button", name="Forward", exact=True).click()
    await titled(page, "Button")
    await page.get_by_role("button", name="New tab").click()
    await expect(page.get_by_role("tab")).to_have_count(2, timeout=60_000)
    await go(page, "/home/assistant/other.html", "Other")
    await page.get_by_role("tab", name="Button").click()
    await expect(page.get_by_role("tab", name="Button")).to_have_attribute("aria-selected", "true", timeout=60_000)
    await page.get_by_role("button", name="Close the tab Other").click()
    await expect(page.get_by_role("tab")).to_have_count(1, timeout=60_000)
    await page.get_by_label("Address").fill("no address at all")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("That is not an address.")).to_be_visible()


async def test_wheel_right_button_and_fingers(page: Page) -> None:
    await page.mouse.move(*await point(page, 700, 600))
    await page.mouse.wheel(0, 120)
    await titled(page, "down")
    await page.mouse.click(*await point(page, 700, 600), button="right")
    await titled(page, "menu")
    fingers = await page.context.new_cdp_session(page)

    async def touch(kind: str, *points: tuple[float, float]) -> None:
        at = [{"x": x, "y": y} for x, y in points]
        await fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    await touch("touchStart", await point(page, 200, 150))
    await touch("touchEnd")
    await titled(page, "clicked 1")
    await touch("touchStart", await point(page, 700, 500))
    await touch("touchMove", await point(page, 700, 600))
    await touch("touchMove", await point(page, 700, 700))
    await touch("touchEnd")
    await titled(page, "up")


async def test_a_page_that_the_network_door_refused_is_named_with_the_reason(
    page: Page, whole: Whole, person: BrowserContext
) -> None:
    reason = "did not let the browser reach refused.example:443: sandboxes of this service have no network"
    bar = page.get_by_label("Address")
    await bar.fill("https://refused.example/some/page")
    await bar.press("Enter")
    await expect(page.get_by_text(reason)).to_be_visible()
    later = await live(person, whole, "hands")
    await expect(later.get_by_text(reason)).to_be_visible()
    await later.close()
    await go(page, ADDRESS, "Button")
    await expect(page.get_by_text(reason)).to_have_count(0)


async def test_the_page_follows_the_model_and_shows_each_tab_under_its_own_address(
    whole: Whole, person: BrowserContext
) -> None:
    colours = {"red": [255, 0, 0], "blue": [0, 0, 255]}
    for name in colours:
        await whole.put("model", f"{name}.html", f"<title>{name}</title><body bgcolor={name}>")
    page = await live(person, whole, "model")
    canvas = page.get_by_label("Picture of the computer's browser")
    pixel = "canvas => [...canvas.getContext('2d').getImageData(5, 5, 1, 1).data].slice(0, 3)"

    async def shown(name: str) -> None:
        await expect(page.get_by_label("Address")).to_have_value(f"file:///home/assistant/{name}.html")
        await expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        await expect(page.get_by_text("Waiting for")).to_have_count(0)
        async with asyncio.timeout(60):  # the picture may be one of the page before in the same tab
            while any(abs(a - b) > 60 for a, b in zip(await canvas.evaluate(pixel), colours[name], strict=True)):
                await asyncio.sleep(0.05)

    async with async_playwright() as playwright:
        model = await playwright.chromium.connect_over_cdp(
            f"{whole.base}/browser/model", headers={"Authorization": f"Bearer {KEY}"}
        )
        first = model.contexts[0].pages[0]
        await first.goto("file:///home/assistant/red.html")
        await shown("red")
        second = await model.contexts[0].new_page()
        await second.goto("file:///home/assistant/blue.html")
        await shown("blue")
        await first.bring_to_front()
        await shown("red")
        await second.bring_to_front()
        await shown("blue")
        await second.close()
        await shown("red")
        await model.close()
    await page.close()
