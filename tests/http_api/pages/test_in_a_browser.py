"""The pages as a person meets them: a true Chromium before the true service."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Literal

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser import ground
from tests.browser.whole import LISTEN, told
from tests.conftest import absent
from tests.http_api.pages.visitor import KEY, House, Visit, accessible, screens, visit
from tests.http_api.pages.visitor import house as open_house
from tests.support.chromium import AFAR

pytestmark = [pytest.mark.anyio, pytest.mark.real]
expect.set_options(timeout=60_000)

OUTPUTS = "/mnt/user-data/outputs"
HOSTILE = """# Report

<script>alert("script")</script> <img src=x onerror='alert("handler")'> [link](javascript:alert(1))

| a | b |
|---|---|
| 1 | 2 |

$e^{i\\pi}$
"""
SPY = """<link rel="stylesheet" href="style.css"><p id="p">before</p><script>
const tries = { origin: self.origin };
try { document.cookie; tries.cookie = "open" } catch (e) { tries.cookie = e.name }
try { top.document.body; tries.top = "open" } catch (e) { tries.top = e.name }
fetch("/files/spy/").then(() => "open", () => "closed").then((api) => {
  tries.api = api;
  document.getElementById("p").textContent = JSON.stringify(tries);
});
</script>"""


@pytest.fixture(scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """A service with a key."""
    async with open_house(tmp_path_factory.mktemp("locked"), key=KEY) as house:
        yield house


async def rows(page: Page) -> str:
    return await page.locator(".xterm-rows").inner_text()


async def test_what_a_person_types_in_the_terminal_runs_and_is_there_after_a_reload(
    house: House, browser: Browser
) -> None:
    if ground.ttyd_command() is None:
        absent("needs ttyd: install it, or build an image (make image)")
    await house.furnish("term")
    async with visit(browser, f"{house.url}/terminal/term/") as seen:
        await expect(seen.page.get_by_text("Connected")).to_be_visible()
        await expect(seen.page.locator(".xterm-rows")).to_contain_text(re.compile(r"[$#]"))
        await seen.page.keyboard.type("echo grüße-$((40 + 2))\n")
        await expect(seen.page.locator(".xterm-rows")).to_contain_text("grüße-42")
        await seen.page.reload()
        await expect(seen.page.get_by_text("Connected")).to_be_visible()
        await expect(seen.page.locator(".xterm-rows")).to_contain_text("grüße-42")
        assert seen.errors == []


async def test_a_terminal_that_was_cut_off_says_so_and_comes_back(house: House, browser: Browser) -> None:
    if ground.ttyd_command() is None:
        absent("needs ttyd: install it, or build an image (make image)")
    await house.furnish("cut")
    async with visit(browser, f"{house.url}/terminal/cut/") as seen:
        await expect(seen.page.get_by_text("Connected")).to_be_visible()
        await seen.page.evaluate(LISTEN)
        await house.bash("cut", "pkill -KILL -f 'usr/bin/[t]tyd'")
        await told(seen.page, "Reconnecting")
        await expect(seen.page.get_by_text("Connected")).to_be_visible()
        await seen.page.keyboard.type("echo back-$((1 + 1))\n")
        await expect(seen.page.locator(".xterm-rows")).to_contain_text("back-2")


async def test_who_has_no_mouse_can_leave_the_terminal_and_it_does_not_take_the_keys_back(
    house: House, browser: Browser
) -> None:
    if ground.ttyd_command() is None:
        absent("needs ttyd: install it, or build an image (make image)")
    await house.furnish("keys")
    async with visit(browser, f"{house.url}/terminal/keys/") as seen:
        await expect(seen.page.get_by_text("Connected")).to_be_visible()
        await expect(seen.page.get_by_label("Terminal input. Shift+Escape leaves it.")).to_be_focused()
        await seen.page.keyboard.press("Shift+Escape")
        read_only = seen.page.get_by_role("button", name="Read only")
        await expect(read_only).to_be_focused()
        await seen.page.evaluate(LISTEN)
        await house.bash("keys", "pkill -KILL -f 'usr/bin/[t]tyd'")
        await told(seen.page, "Reconnecting")
        await expect(seen.page.get_by_text("Connected")).to_be_visible()
        await expect(read_only).to_be_focused()


NAMED_WHEN_DRAWN = """<script>
    requestAnimationFrame(() => requestAnimationFrame(() => { document.title = "Drawn" }))
</script>"""


async def clicked(page: Page, answer: Locator) -> None:
    """Click into the live page until it answers: Chromium throws away input that comes before its first picture."""
    for attempt in range(6):
        await page.locator("canvas").click()
        try:
            await expect(answer).to_be_visible(timeout=10_000)
            return
        except AssertionError:
            if attempt == 5:
                raise


async def test_a_person_takes_over_the_live_browser_and_clicks(house: House, browser: Browser) -> None:
    await house.furnish("live")
    style = "width: 100vw; height: 100vh"
    button = f"""<title>start</title><button style='{style}' onclick='document.title="clicked"'></button>"""
    await house.put("live", "/home/assistant/page.html", f"{button}{NAMED_WHEN_DRAWN}".encode())
    async with visit(browser, f"{house.url}/browser/live/") as seen:
        await expect(seen.page.get_by_text("The browser of this chat is not running.")).to_be_visible()
        assert (await house.client.get("/browser/live/status")).json()["running"] is False
        await seen.page.get_by_role("button", name="Start the browser").click()
        await expect(seen.page.get_by_role("button", name="Take control")).to_be_enabled(timeout=60_000)
        await seen.page.get_by_role("button", name="Take control").click()
        await expect(seen.page.get_by_text("You have control.")).to_be_visible()
        await seen.page.get_by_label("Address").fill("/home/assistant/page.html")
        await seen.page.keyboard.press("Enter")
        await expect(seen.page.get_by_role("tab", name="Drawn")).to_be_visible()
        await clicked(seen.page, seen.page.get_by_role("tab", name="clicked"))
        await seen.page.get_by_role("button", name="Return control").click()
        await expect(seen.page.get_by_role("button", name="Take control")).to_be_enabled()
        assert seen.errors == []


async def test_hostile_markdown_is_shown_and_runs_nothing(house: House, browser: Browser) -> None:
    await house.put("md", f"{OUTPUTS}/report.md", HOSTILE.encode())
    async with visit(browser, f"{house.url}/preview/md/report.md") as seen:
        frame = seen.page.frame_locator("iframe.file-frame")
        await expect(frame.get_by_role("heading", name="Report")).to_be_visible()
        await expect(frame.locator(".katex").first).to_be_visible()
        assert await frame.locator(".viewer").locator("script, img[onerror], a[href^='javascript']").count() == 0
        inner = next(f for f in seen.page.frames if f.url.endswith("/static/viewer"))
        assert await inner.evaluate("self.origin") == "null"
        assert seen.dialogs == []


async def test_a_page_that_the_model_made_runs_in_an_origin_of_its_own(house: House, browser: Browser) -> None:
    await house.put("spy", f"{OUTPUTS}/index.html", SPY.encode())
    await house.put("spy", f"{OUTPUTS}/style.css", b"p { color: rgb(1, 2, 3) }")
    async with visit(browser, f"{house.url}/preview/spy/index.html") as seen:
        line = seen.page.frame_locator("iframe.file-frame").locator("#p")
        await expect(line).to_have_text("before")
        await seen.page.get_by_role("button", name="Run this page").click()
        await expect(line).to_contain_text("origin")
        tries = json.loads(await line.inner_text())
        assert tries == {"origin": "null", "cookie": "SecurityError", "top": "SecurityError", "api": "closed"}
        await expect(line).to_have_css("color", "rgb(1, 2, 3)")


async def test_every_kind_of_text_file_opens_from_the_tree(house: House, browser: Browser) -> None:
    await house.put("tree", f"{OUTPUTS}/sub/app.py", b"def total():\n    return 42\n")
    await house.put("tree", f"{OUTPUTS}/data.csv", b"name,amount\nAnn,3\n")
    await house.put("tree", f"{OUTPUTS}/blob.bin", bytes(range(256)))
    async with visit(browser, f"{house.url}/preview/tree/") as seen:
        frame = seen.page.frame_locator("iframe.file-frame")
        await seen.page.get_by_role("treeitem", name="sub").click()
        await seen.page.get_by_role("treeitem", name="app.py").click()
        await expect(frame.locator(".cm-content")).to_contain_text("return 42")
        assert seen.page.url.endswith("/preview/tree/sub/app.py")
        await seen.page.get_by_role("treeitem", name="data.csv").click()
        await expect(frame.get_by_role("cell", name="Ann")).to_be_visible()
        await seen.page.get_by_role("treeitem", name="blob.bin").click()
        await expect(frame.locator("pre.hex")).to_contain_text("00 01 02 03")
        await seen.page.go_back()
        await expect(frame.get_by_role("cell", name="Ann")).to_be_visible()
        assert seen.errors == []


async def test_an_upload_is_in_the_tree_and_in_the_sandbox(house: House, browser: Browser) -> None:
    async with visit(browser, f"{house.url}/preview/up/") as seen:
        picked = {"name": "given <b>.txt", "mimeType": "text/plain", "buffer": b"for the model"}
        await seen.page.locator("input[type=file]").set_input_files(picked)  # type: ignore[arg-type]
        await expect(seen.page.get_by_role("treeitem", name="given <b>.txt")).to_be_visible()
        assert await house.bash("up", "cat '/mnt/user-data/uploads/given <b>.txt'") == "for the model"


async def test_who_has_no_key_signs_in_and_comes_back(locked: House, browser: Browser) -> None:
    async with visit(browser, f"{locked.url}/preview/mine/") as seen:
        await seen.page.get_by_label("API key").fill("wrong")
        await seen.page.get_by_role("button", name="Sign in").click()
        await expect(seen.page.get_by_role("alert")).to_be_visible()
        await seen.page.get_by_label("API key").fill(KEY)
        await seen.page.get_by_role("button", name="Sign in").click()
        await expect(seen.page.get_by_role("heading", name="mine")).to_be_visible()
        assert seen.page.url == f"{locked.url}/preview/mine/"


async def signed_link(locked: House, chat: str, file: str = "") -> str:
    prompt = (await locked.client.get("/system-prompt", params={"chat_id": chat})).text
    key = prompt.split("?key=", 1)[1].split()[0].strip("`)")
    return f"{locked.url}/preview/{chat}/{file}?key={key}"


@pytest.mark.parametrize("name", ["127.0.0.1", AFAR])
async def test_no_tab_shows_the_signature_of_the_link_that_opened_it(
    locked: House, browser: Browser, name: str
) -> None:
    """Also by a name for which the browser does not say what it loads a page for, as it is over plain HTTP."""
    await locked.put("signed", f"{OUTPUTS}/a.md", b"# Mine\n")
    await locked.put("signed", f"{OUTPUTS}/b.md", b"# Other\n")
    base = locked.url.replace("127.0.0.1", name)
    link = (await signed_link(locked, "signed", "a.md")).replace("127.0.0.1", name)
    async with visit(browser, link) as seen:
        frame = seen.page.frame_locator("iframe.file-frame")
        await expect(frame.get_by_role("heading", name="Mine")).to_be_visible()
        await expect(seen.page).to_have_url(f"{base}/preview/signed/a.md")
        await seen.page.get_by_role("treeitem", name="b.md").click()
        await expect(frame.get_by_role("heading", name="Other")).to_be_visible()
        await expect(seen.page).to_have_url(f"{base}/preview/signed/b.md")
        await seen.page.reload()
        await expect(frame.get_by_role("heading", name="Other")).to_be_visible()
        await seen.page.go_back()
        await expect(frame.get_by_role("heading", name="Mine")).to_be_visible()
        await expect(seen.page).to_have_url(f"{base}/preview/signed/a.md")
        assert seen.errors == []


async def test_a_damaged_link_says_so_and_the_key_leads_on(locked: House, browser: Browser) -> None:
    link = (await signed_link(locked, "damaged"))[:-1]
    async with visit(browser, link) as seen:
        await expect(seen.page.get_by_role("alert")).to_contain_text("This link does not work")
        await accessible(seen.page)
        await seen.page.get_by_label("API key").fill(KEY)
        await seen.page.get_by_role("button", name="Sign in").click()
        await expect(seen.page.get_by_role("heading", name="damaged")).to_be_visible()
        await expect(seen.page).to_have_url(f"{locked.url}/preview/damaged/")


async def test_a_service_without_a_key_asks_for_none(house: House, browser: Browser) -> None:
    async with visit(browser, f"{house.url}/login?next=/preview/open/") as seen:
        await expect(seen.page.get_by_role("heading", name="No key is needed")).to_be_visible()
        await expect(seen.page.get_by_label("API key")).to_have_count(0)
        await seen.page.get_by_role("button", name="Continue").click()
        await expect(seen.page).to_have_url(f"{house.url}/preview/open/")


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize(
    "address",
    [
        pytest.param("/", marks=pytest.mark.long),  # with more on it: test_home_page.py
        "/login",
        "/preview/axe/",
        "/preview/axe/a.md",
        "/terminal/axe/",
        pytest.param("/admin", marks=pytest.mark.long),  # with more on it: test_admin.py
    ],
)
async def test_nothing_keeps_people_with_disabilities_out(house: House, tab: Visit, address: str, width: int) -> None:
    await house.put("axe", f"{OUTPUTS}/a.md", b"# Title\n\nText\n")
    await tab.go(house.url + address, width)
    await expect(tab.page.get_by_role("heading", level=1)).to_be_visible()
    await accessible(tab.page)


@pytest.mark.parametrize(("scheme", "width"), screens(both=True))
async def test_the_terminal_and_the_live_browser_keep_nobody_out(
    house: House, browser: Browser, scheme: Literal["light", "dark"], width: int
) -> None:
    if ground.ttyd_command() is None:
        absent("needs ttyd: install it, or build an image (make image)")
    await house.furnish("eyes")
    fields = "<title>Fields</title><body style='margin:0;background:#eef'><select style='width:90vw;height:90vh'><option>one</select>"
    await house.put("eyes", "/home/assistant/fields.html", f"{fields}{NAMED_WHEN_DRAWN}".encode())
    async with visit(browser, f"{house.url}/terminal/eyes/", width=width, scheme=scheme) as seen:
        await expect(seen.page.get_by_text("Connected")).to_be_visible()
        assert await seen.page.evaluate("document.documentElement.scrollWidth") <= width
        await seen.page.get_by_role("button", name="Search").click()
        await accessible(seen.page)
    async with visit(browser, f"{house.url}/browser/eyes/", width=width, scheme=scheme) as seen:
        take = seen.page.get_by_role("button", name="Take control")
        start = seen.page.get_by_role("button", name="Start the browser")
        await expect(start.or_(take.and_(seen.page.locator(":enabled"))).first).to_be_visible()
        if await start.count():
            await start.click()
        await expect(take).to_be_enabled(timeout=60_000)
        await accessible(seen.page)
        await take.click()
        await expect(seen.page.get_by_text("You have control.")).to_be_visible()
        await seen.page.get_by_label("Address").fill("/home/assistant/fields.html")
        await seen.page.keyboard.press("Enter")
        await expect(seen.page.get_by_role("tab", name="Drawn")).to_be_visible()
        await expect(seen.page.get_by_text(re.compile("^Waiting for (a|the first) picture"))).to_have_count(0)
        await clicked(seen.page, seen.page.get_by_label("Options of the list in the page"))
        await accessible(seen.page)
