"""The live view: a person sees the sandbox's browser and drives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from cubicle.browser import cdp
from cubicle.core.chat import Chat
from cubicle.machine.machine import Machine
from tests.browser import pages
from tests.browser.ground import Service
from tests.browser.watcher import Watcher

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.usefixtures("chromium")]

Watch = Callable[[], Awaitable[Watcher]]


@pytest.fixture(scope="module")
async def machine(service: Service, http: httpx.AsyncClient) -> AsyncIterator[Machine]:
    """A sandbox whose browser runs."""
    async with service.machine("b") as machine:
        answer = await http.post("/browser/b/start")
        assert answer.json() == {"running": True, "started": True}, answer.text
        yield machine


@pytest.fixture
async def watch(service: Service, machine: Machine) -> AsyncIterator[Watch]:
    """Lets somebody watch."""
    watchers: list[Watcher] = []

    async def watching(**options: Any) -> Watcher:
        watchers.append(await Watcher.at(f"{service.ws}/browser/b/live", **options))
        return watchers[-1]

    yield watching
    for watcher in watchers:
        await watcher.leave()


@pytest.fixture
async def driver(watch: Watch, machine: Machine) -> Watcher:
    """Somebody who drives, with the page of buttons and fields open."""
    watcher = await watch()
    await watcher.drive()
    await watcher.open(await pages.put(machine, "before", "<title>Before</title>"))  # not what the last test left
    await show(watcher, machine, "button", pages.BUTTON)
    return watcher


async def show(driver: Watcher, machine: Machine, name: str, content: str) -> None:
    """Have the page before the one who drives."""
    await driver.open(await pages.put(machine, name, content))
    await pages.painted(machine)


async def title(watcher: Watcher, wanted: str) -> None:
    """Wait for the shown tab to have this title."""

    def has_it(told: dict[str, Any]) -> bool:
        return any(tab["id"] == told["active"] and tab["title"] == wanted for tab in told["tabs"])

    await watcher.tabs(has_it)


def active(watcher: Watcher) -> str:
    """The tab that is shown."""
    told = watcher.latest("tabs")
    assert told
    return str(told["active"])


async def test_a_viewer_is_told_everything_at_first_and_sees_a_picture(watch: Watch) -> None:
    watcher = await watch()
    assert (await watcher.until("hello"))["version"] == 1
    assert (await watcher.until("state"))["browser"] == "running"
    tabs = await watcher.until("tabs")
    assert tabs["active"] in [tab["id"] for tab in tabs["tabs"]]
    assert (await watcher.until("control"))["holder"] is None
    picture = await watcher.picture()
    async with asyncio.timeout(60):  # a small one, by which tabs are watched that nobody sees, may come before
        while picture.pixels != (1280, 800):
            picture = await watcher.picture()
    assert picture.jpeg[:3] == b"\xff\xd8\xff"
    assert picture.tab == tabs["active"]
    assert (picture.width, picture.height) == (1280, 800)
    await watcher.until("heartbeat")


async def test_the_page_is_1280_by_800_in_every_tab_and_window(driver: Watcher, machine: Machine) -> None:
    sizes = "[innerWidth, innerHeight, devicePixelRatio]"
    assert await pages.evaluate(machine, sizes) == [1280, 800, 1]
    async with cdp.attached(machine, lambda event: None) as connection:
        opened = await connection.call("Target.createTarget", url="about:blank", newWindow=True)
        attached = await connection.call("Target.attachToTarget", targetId=opened["targetId"], flatten=True)
        answer = await connection.call("Runtime.evaluate", attached["sessionId"], expression=sizes, returnByValue=True)
        await connection.call("Target.closeTarget", targetId=opened["targetId"])
    assert answer["result"]["value"] == [1280, 800, 1]


async def test_a_click_reaches_the_page(driver: Watcher, machine: Machine) -> None:
    await driver.click(200, 150)
    await title(driver, "clicked 1")
    assert await pages.evaluate(machine, "document.title") == "clicked 1"


async def test_the_mouse_has_the_shape_that_the_page_gives_it(driver: Watcher, machine: Machine) -> None:
    shapes = """<!doctype html><title>Shapes</title><body style="margin:0">
<a href="#x" style="position:absolute;left:0;top:0;font-size:60px">link</a>
<p style="position:absolute;left:0;top:200px;font-size:60px;margin:0">words</p>
<div style="position:absolute;left:300px;top:0;width:200px;height:200px;cursor:url(data:,) 2 2,grab"></div>
<div style="position:absolute;left:300px;top:300px;width:200px;height:200px;cursor:none"></div>
<script>document.elementFromPoint = () => { throw new Error("not for the page to say") }</script>"""
    await show(driver, machine, "shapes", shapes)
    for x, y, shape in ((30, 30, "pointer"), (30, 230, "text"), (400, 100, "grab"), (400, 400, "default")):
        await driver.say("mouse", event="move", x=x, y=y)
        await driver.until("cursor", cursor=shape)


async def test_what_is_typed_arrives_in_every_script(driver: Watcher, machine: Machine) -> None:
    await driver.click(450, 115)
    await driver.say("text", text="höhe é 日本")
    await driver.say("composition", text="nih", start=3, end=3)
    await driver.say("text", text="日")
    await driver.say("key", event="down", key="Backspace", code="Backspace")
    await driver.say("key", event="up", key="Backspace", code="Backspace")
    await driver.say("paste", text=" pasted")
    async with asyncio.timeout(60):
        while await pages.evaluate(machine, "field.value") != "höhe é 日本 pasted":
            await asyncio.sleep(0.05)
    assert "Backspace" in await pages.evaluate(machine, "keys")


async def test_select_all_copy_and_cut(driver: Watcher, machine: Machine) -> None:
    await driver.click(450, 115)
    await driver.say("text", text="take this")
    for event in ("down", "up"):
        await driver.say("key", event=event, key="a", code="KeyA", modifiers=2)
    await driver.say("copy", cut=False)
    assert (await driver.until("copied"))["text"] == "take this"
    await driver.say("copy", cut=True)
    assert (await driver.until("copied"))["text"] == "take this"
    async with asyncio.timeout(60):
        while await pages.evaluate(machine, "field.value") != "":
            await asyncio.sleep(0.05)


async def test_a_list_is_shown_beside_the_picture(driver: Watcher, machine: Machine) -> None:
    await driver.click(150, 315)
    asked = await driver.until("select")
    assert [option["label"] for option in asked["options"]] == ["one", "two", "three"]
    assert [option["disabled"] for option in asked["options"]] == [False, False, True]
    assert asked["rect"] == {"x": 100, "y": 300, "w": 200, "h": 30}
    await driver.say("select", id=asked["id"], chosen=[1])
    await driver.until("gone", id=asked["id"])
    await title(driver, "chose two")


async def test_a_day_is_picked_beside_the_picture(driver: Watcher) -> None:
    await driver.click(450, 315)
    asked = await driver.until("picker")
    assert (asked["kind"], asked["value"]) == ("date", "")
    await driver.say("picker", id=asked["id"], value="2026-11-15")
    await title(driver, "day 2026-11-15")


async def test_a_dialog_is_answered_by_the_one_who_drives_and_seen_by_all(driver: Watcher, watch: Watch) -> None:
    other = await watch()
    await driver.click(150, 420)
    asked = await driver.until("dialog")
    assert (asked["kind"], asked["message"], asked["value"]) == ("prompt", "Your name?", "nobody")
    assert (await other.until("dialog"))["id"] == asked["id"]
    late = await watch()
    assert (await late.until("dialog"))["id"] == asked["id"]
    await other.say("dialog", id=asked["id"], accept=True, text="Eve")
    assert (await other.until("refused"))["reason"] == "not-driving"
    await driver.say("dialog", id=asked["id"], accept=True, text="Ann")
    await title(driver, "said Ann")
    await other.until("gone", id=asked["id"])


async def test_files_are_chosen_from_the_uploads(driver: Watcher, machine: Machine) -> None:
    await machine.write("/mnt/user-data/uploads/paper.txt", b"words", as_root=True)
    await driver.click(450, 415)
    asked = await driver.until("chooser")
    assert (asked["multiple"], asked["accept"]) == (False, "")
    await driver.say("files", id=asked["id"], names=["../../etc/passwd"])
    assert (await driver.until("refused"))["reason"] == "bad-message"
    await driver.say("files", id=asked["id"], names=["paper.txt"])
    await title(driver, "file paper.txt")


async def test_a_download_goes_to_the_outputs(driver: Watcher, machine: Machine) -> None:
    page = "<a download='report.txt' style='position:absolute;left:0;top:0;font-size:80px' href='data:,words'>get</a>"
    await show(driver, machine, "download", page)
    await driver.click(40, 40)
    assert (await driver.until("download", state="started"))["name"] == "report.txt"
    await driver.until("download", state="finished")
    assert await machine.read_bytes("/mnt/user-data/outputs/report.txt", limit=100) == b"words"


async def test_one_drives_and_the_others_watch(watch: Watch) -> None:
    one, two = await watch(), await watch()
    await two.say("mouse", event="move", x=1, y=1)
    assert await two.until("refused") == {"type": "refused", "message": "mouse", "reason": "not-driving"}
    await one.drive("Ann")
    told = await two.that(lambda told: told["type"] == "control" and told["holder"] is not None)
    assert (told["holder"]["name"], told["you"], told["seconds"]) == ("Ann", False, 60)
    await two.say("control", action="take", name="Bob")
    assert (await two.until("refused"))["reason"] == "held"
    await one.say("control", action="return")
    await two.until("control", holder=None)
    await two.drive("Bob")
    await two.leave()
    await one.until("control", holder=None)


async def test_tabs_open_come_to_the_front_and_close(driver: Watcher, machine: Machine) -> None:
    first = active(driver)
    moving = await pages.put(machine, "moving", pages.MOVING)
    await driver.say("tab", action="open", url=moving)
    await title(driver, "Moving")
    second = active(driver)
    assert second != first
    async with asyncio.timeout(60):
        while (await driver.picture()).tab != second:
            pass
    await driver.say("tab", action="activate", id=first)
    await driver.until("tabs", active=first)
    await driver.say("tab", action="close", id=second)
    await driver.that(lambda told: told["type"] == "tabs" and [tab["id"] for tab in told["tabs"]] == [first])
    await driver.say("tab", action="close", id="nothing")
    assert (await driver.until("refused"))["reason"] == "no-tab"


async def test_back_and_forward(driver: Watcher, machine: Machine) -> None:
    await driver.open(await pages.put(machine, "flip", pages.FLIP))
    await driver.tabs(back=True)
    await driver.say("nav", action="back")
    await driver.tabs(forward=True)
    await title(driver, "Button")
    await driver.say("nav", action="forward")
    await title(driver, "Flip")


async def test_a_viewer_gets_the_latest_frame_and_one_at_a_time(
    driver: Watcher, watch: Watch, machine: Machine
) -> None:
    await driver.open(await pages.put(machine, "moving", pages.MOVING))
    slow = await watch(acknowledges=False)  # type: ignore[call-arg]
    first = await slow.picture()
    async with asyncio.timeout(60):
        while not driver.pictures or driver.pictures[-1].seq < first.seq + 15:
            await driver.picture()
    await slow.say("ack", seq=first.seq)
    second = await slow.picture()
    assert slow.frames == 2
    assert second.seq >= first.seq + 10


async def test_frames_are_as_wide_as_the_viewer_needs_and_none_while_nobody_looks(
    driver: Watcher, machine: Machine
) -> None:
    await driver.open(await pages.put(machine, "moving", pages.MOVING))
    await driver.say("view", width=600, visible=True)
    async with asyncio.timeout(60):
        while (await driver.picture()).pixels[0] != 640:
            pass
    await driver.say("view", width=600, visible=False)
    for _ in range(2):  # the first may have been on its way before that was heard
        await driver.until("heartbeat")
    before = driver.frames
    await driver.until("heartbeat")
    assert driver.frames == before
    await driver.say("view", width=1200, visible=True)
    async with asyncio.timeout(60):
        while (await driver.picture()).pixels[0] != 1280:
            pass


async def test_messages_that_are_not_of_the_list(watch: Watch) -> None:
    watcher = await watch()
    for text in ("", "[]", '{"type":"eval","code":"1"}', '{"type":"ack"}', '{"type":"ack","seq":1,"more":1}'):
        await watcher.socket.send(text)
        assert (await watcher.until("refused"))["reason"] == "bad-message"
    for _ in range(5):
        await watcher.socket.send(json.dumps({"type": "key"}))
    with pytest.raises(ConnectionClosed) as closed:
        await watcher.until("never")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


async def test_addresses_that_nobody_may_open(driver: Watcher) -> None:
    for url in (
        "javascript:alert(1)",
        "file:///etc/passwd",
        "chrome://settings",
        "file:///home/assistant/../../etc/passwd",
    ):
        await driver.say("nav", action="go", url=url)
        assert (await driver.until("refused"))["reason"] == "bad-message"
        driver.heard.clear()


async def test_a_killed_browser_is_said_and_started_again(service: Service, http: httpx.AsyncClient) -> None:
    async with service.machine("dies") as machine:
        assert (await http.post("/browser/dies/start")).status_code == 200
        watcher = await Watcher.at(f"{service.ws}/browser/dies/live")
        await watcher.picture()
        await machine.output("pkill -KILL -f [r]emote-debugging-port", timeout=60)
        assert (await watcher.until("state", browser="closed"))["reason"] == "The browser ended."
        with pytest.raises(ConnectionClosed) as closed:
            await watcher.until("never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011
        assert (await http.post("/browser/dies/start")).json() == {"running": True, "started": True}
        watcher = await Watcher.at(f"{service.ws}/browser/dies/live")
        await watcher.picture()
        await service.fleet.stop(Chat("dies"))
        told = "The operator stopped this sandbox."
        assert (await watcher.until("state", browser="closed"))["reason"] == told
        with pytest.raises(ConnectionClosed) as closed:
            await watcher.until("never")
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4410, told)


async def test_no_browser_and_no_chat_have_close_codes(service: Service) -> None:
    for chat, code in (("nobody", 4404), ("still", 4503)):
        if chat == "still":
            async with service.machine(chat):
                pass
        watcher = await Watcher.at(f"{service.ws}/browser/{chat}/live")
        with pytest.raises(ConnectionClosed) as closed:
            await watcher.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == code
    assert not service.fleet.has(Chat("nobody"))
