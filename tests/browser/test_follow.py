"""The live view shows the tab that the model uses, and never a picture under another tab's address."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.async_api import Browser, Page, async_playwright

from cubicle.browser import cdp
from cubicle.core.chat import Chat
from cubicle.machine.machine import Machine
from tests.browser import pages
from tests.browser.ground import VIEWER, Service
from tests.browser.watcher import Picture, Watcher
from tests.support.load import IS_LOADED

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(300), pytest.mark.usefixtures("chromium")]

VIEW_LINK = {"headers": VIEWER}
LIMIT = 30.0
"""Seconds; alone on the machine it is less than one."""


@dataclass
class Viewer:
    """Somebody who watches while the model works, and checks each picture that comes."""

    watcher: Watcher
    took: list[float] = field(default_factory=list)

    async def sees(self, tab: str, url: str) -> None:
        """Wait until this tab is shown with its own address and its own picture, in the colour that the page has."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT):
                await self._seen(tab, url)
        except TimeoutError:
            pictures = [(picture.seq, picture.tab, colour(picture)) for picture in self.watcher.pictures]
            raise AssertionError(f"not seen: {tab} {url}; told {self.watcher.heard[-6:]}, {pictures}") from None
        self.took.append(time.monotonic() - began)

    async def _seen(self, tab: str, url: str) -> None:
        pictured = False
        while True:
            told = self.watcher.latest("tabs")
            if pictured and told and told["active"] == tab and {"id": tab, "url": url} in _addresses(told):
                break
            heard = await self.watcher.hear()
            if isinstance(heard, Picture):
                shown = self.watcher.latest("tabs")
                assert shown, "a picture came before the list of tabs"
                assert heard.tab == shown["active"]
                pictured = heard.tab == tab and colour(heard) == COLOURS[url.rpartition("/")[2]]


def colour(picture: Picture) -> str:
    """The colour of most of the picture: what a page is told apart by."""
    with Image.open(io.BytesIO(picture.jpeg)) as image:
        red, green, blue = image.convert("RGB").resize((1, 1)).getpixel((0, 0))  # type: ignore[misc]
    return "".join("0" if part < 100 else "f" for part in (red, green, blue))


def _addresses(told: dict[str, Any]) -> list[dict[str, str]]:
    return [{"id": tab["id"], "url": tab["url"]} for tab in told["tabs"]]


@pytest.fixture(scope="module")
async def machine(service: Service, http: httpx.AsyncClient) -> AsyncIterator[Machine]:
    async with service.machine("follow") as machine:
        (await http.post("/browser/follow/start")).raise_for_status()
        yield machine


@pytest.fixture
async def viewer(service: Service, machine: Machine) -> AsyncIterator[Viewer]:
    watcher = await Watcher.at(f"{service.ws}/browser/follow/live")
    yield Viewer(watcher)
    await watcher.leave()


@pytest.fixture
async def model(service: Service, machine: Machine) -> AsyncIterator[Browser]:
    """The model's own connection, as a script in the sandbox makes it."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(f"{service.base}/browser/follow")
        yield browser
        await browser.close()


@pytest.fixture
async def put(machine: Machine) -> Callable[[str], Awaitable[str]]:
    async def page(name: str) -> str:
        shade = COLOURS[f"{name}.html"]
        return await pages.put(machine, name, f"<title>{name}</title><body bgcolor='#{shade}'>{LINK}")

    return page


COLOURS = {"red.html": "f00", "green.html": "0f0", "blank.html": "00f", "about:blank": "fff"}
LINK = '<a id=link href="blank.html" target=_blank>in a new tab</a>'


async def id_of(page: Page) -> str:
    session = await page.context.new_cdp_session(page)
    info = await session.send("Target.getTargetInfo")
    await session.detach()
    return str(info["targetInfo"]["targetId"])


async def test_the_view_follows_the_model_from_tab_to_tab(
    model: Browser, viewer: Viewer, http: httpx.AsyncClient, put: Callable[[str], Awaitable[str]]
) -> None:
    red, green, blank = await put("red"), await put("green"), await put("blank")
    context = model.contexts[0]
    first = context.pages[0]
    await first.goto(red)
    first_id = await id_of(first)
    await viewer.sees(first_id, red)

    second = await context.new_page()
    second_id = await id_of(second)
    await viewer.sees(second_id, "about:blank")
    await second.goto(green)
    await viewer.watcher.tabs(lambda told: {"id": second_id, "url": green} in _addresses(told))

    await first.bring_to_front()
    await viewer.sees(first_id, red)
    await second.bring_to_front()
    await viewer.sees(second_id, green)
    assert (await http.get(f"/browser/follow/json/activate/{first_id}")).status_code == 200
    await viewer.sees(first_id, red)

    async with context.expect_page() as opening:
        await first.click("#link")
    opened = await opening.value
    opened_id = await id_of(opened)
    await viewer.sees(opened_id, blank)
    await first.goto(green)  # in the background: it is used all the same
    await viewer.sees(first_id, green)
    await opened.mouse.click(300, 300)
    await viewer.sees(opened_id, blank)
    await first.mouse.click(300, 300)  # input, and nothing else
    await viewer.sees(first_id, green)

    await opened.mouse.click(300, 300)
    await viewer.sees(opened_id, blank)
    await opened.close()
    await viewer.sees(first_id, green)
    await second.close()
    print("seconds until the view followed:", [round(seconds, 2) for seconds in viewer.took])
    assert IS_LOADED or median(viewer.took) < 1


async def test_tabs_are_pictured_however_soon_they_change_their_document(
    model: Browser, viewer: Viewer, put: Callable[[str], Awaitable[str]]
) -> None:
    """While a page changes its document, the browser refuses to send pictures of it."""
    red, green = await put("red"), await put("green")
    first = model.contexts[0].pages[0]
    await first.goto(red)
    for turn in range(10):
        page = await model.contexts[0].new_page()
        await asyncio.sleep(turn % 5 * 0.02)
        await page.goto(green)
        await viewer.sees(await id_of(page), green)
        await page.close()
        await viewer.sees(await id_of(first), red)


async def test_a_window_of_its_own_is_followed_and_the_other_one_when_it_is_used(
    model: Browser, viewer: Viewer, put: Callable[[str], Awaitable[str]]
) -> None:
    red, green = await put("red"), await put("green")
    page = model.contexts[0].pages[0]
    await page.goto(red)
    await viewer.sees(await id_of(page), red)
    apart = await model.new_context()
    other = await apart.new_page()
    await viewer.sees(await id_of(other), "about:blank")
    await page.goto(green)
    await viewer.sees(await id_of(page), green)
    await other.goto(red)
    await viewer.sees(await id_of(other), red)
    await apart.close()
    await viewer.sees(await id_of(page), green)


async def test_who_comes_later_is_shown_the_tab_in_front(
    model: Browser, service: Service, put: Callable[[str], Awaitable[str]]
) -> None:
    red, green = await put("red"), await put("green")
    context = model.contexts[0]
    first = context.pages[0]
    await first.goto(red)
    second = await context.new_page()
    await second.goto(green)
    await first.bring_to_front()
    late = Viewer(await Watcher.at(f"{service.ws}/browser/follow/live"))
    assert (await late.watcher.until("tabs"))["active"] == await id_of(first)
    await late.sees(await id_of(first), red)
    await late.watcher.leave()
    await second.close()


async def test_a_tab_that_opens_in_the_background_is_followed_and_drawn(
    service: Service, viewer: Viewer, http: httpx.AsyncClient, machine: Machine, put: Callable[[str], Awaitable[str]]
) -> None:
    """By plain DevTools: a client that emulates focus, as Playwright does, has tabs in the background drawn too."""
    red, green = await put("red"), await put("green")
    async with cdp.attached(machine, lambda event: None) as connection:
        await viewer.watcher.until("tabs")
        made = await connection.call("Target.createTarget", url=red, background=True)
        await viewer.sees(made["targetId"], red)
        other = await connection.call("Target.createTarget", url=green, background=True)
        await viewer.sees(other["targetId"], green)
        # Somebody looks at the first one, without control; the others are shown what they were.
        late = Viewer(await Watcher.at(f"{service.ws}/browser/follow/live", **VIEW_LINK))
        await late.sees(other["targetId"], green)
        await late.watcher.say("look", tab=made["targetId"])
        await late.sees(made["targetId"], red)
        told = viewer.watcher.latest("tabs")
        assert told
        assert (told["active"], told["following"]) == (other["targetId"], True)
        await late.watcher.say("mouse", event="move", x=1, y=1)
        assert (await late.watcher.until("refused"))["reason"] == "view-only"
        await connection.call("Target.closeTarget", targetId=made["targetId"])
        await late.sees(other["targetId"], green)  # what it looked at is gone
        await late.watcher.leave()
        await connection.call("Target.closeTarget", targetId=other["targetId"])


async def test_a_page_that_reloads_itself_in_the_background_takes_nothing_over(
    model: Browser, viewer: Viewer, machine: Machine, put: Callable[[str], Awaitable[str]]
) -> None:
    red = await put("red")
    again = await pages.put(
        machine, "again", "<title>again</title><script>setTimeout('location.reload()', 300)</script>"
    )
    context = model.contexts[0]
    reloading = await context.new_page()
    await reloading.goto(again)
    await context.pages[0].goto(red)
    first = await id_of(context.pages[0])
    await viewer.sees(first, red)
    loads = 0
    while loads < 3:
        await reloading.wait_for_event("load")
        loads += 1
    await viewer.watcher.until("heartbeat")
    told = viewer.watcher.latest("tabs")
    assert told
    assert told["active"] == first
    # Chromium forgets a close that comes while a page changes its document (crbug.com/536385539): it stands still first.
    await pages.put(machine, "again", "<title>still</title>")
    await reloading.wait_for_function("document.title === 'still'")
    await reloading.close()


async def test_input_of_the_model_is_held_while_a_person_drives_and_the_model_is_told_of_it(
    model: Browser, viewer: Viewer, service: Service, machine: Machine
) -> None:
    button = await pages.put(machine, "button", pages.BUTTON)
    page = model.contexts[0].pages[0]
    await page.goto(button)
    await pages.painted(machine)
    ann = viewer.watcher
    await ann.drive("Ann")
    clicking = asyncio.create_task(page.mouse.click(200, 150))
    await ann.until("control", waiting=True)
    await ann.click(200, 150)
    await ann.tabs(lambda told: told["tabs"][0]["title"] == "clicked 1")
    assert not clicking.done()
    await ann.say("control", action="return")
    await clicking
    await ann.tabs(lambda told: told["tabs"][0]["title"] == "clicked 2")
    said = service.screens.hand_backs.take(Chat("follow"))
    assert said.startswith("Note: the user used the browser from ")
    assert f"now at {button}." in said


ROLLS = """<!doctype html><title>0 0</title><style>div { position: absolute; top: 0; width: 300px; height: 600px; overflow: auto }
p { height: 5000px }</style><div id=one><p>one</div><div id=two style="left: 400px"><p>two</div>
<button style="position: absolute; left: 800px; width: 200px; height: 200px" onclick="document.title = 'clicked ' + ++n">
</button><script>let n = 0; addEventListener('scroll', () => document.title = one.scrollTop + ' ' + two.scrollTop, true)
</script>"""


async def test_the_wheel_of_a_person_scrolls_and_a_program_in_the_sandbox_presses_nothing_meanwhile(
    model: Browser, viewer: Viewer, machine: Machine
) -> None:
    """Chromium passes a wheel on when the page is drawn next, and not when it is told of it."""
    await model.contexts[0].pages[0].goto(await pages.put(machine, "rolls", ROLLS))
    await pages.painted(machine)
    ann = viewer.watcher
    await ann.drive("Ann")
    for x, title in ((100, "100 0"), (500, "100 100"), (100, "200 100")):
        await ann.say("mouse", event="move", x=x, y=300)
        await ann.say("wheel", x=x, y=300, dx=0, dy=100)
        await ann.tabs(lambda told, title=title: told["tabs"][0]["title"] == title)  # type: ignore[misc]
    async with cdp.attached(machine, lambda event: None) as program:
        page = await program.call(
            "Target.attachToTarget", targetId=await id_of(model.contexts[0].pages[0]), flatten=True
        )
        for kind in ("mousePressed", "mouseReleased"):
            await program.call(
                "Input.dispatchMouseEvent", page["sessionId"], type=kind, x=900, y=100, button="left", clickCount=1
            )
    await ann.click(900, 100)
    await ann.tabs(lambda told: told["tabs"][0]["title"].startswith("clicked"))
    await ann.click(900, 100)
    await ann.tabs(lambda told: told["tabs"][0]["title"] == "clicked 2")
    await ann.say("control", action="return")
