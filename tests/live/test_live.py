"""The live view: a person sees the sandbox's browser and drives it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from cubicle.sandbox.machine import Machine
from tests.live import pages
from tests.live.ground import Service
from tests.live.watcher import Watcher

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("chromium")]


@pytest.fixture
async def machine(service: Service, http: httpx.AsyncClient) -> AsyncIterator[Machine]:
    """A sandbox whose browser runs."""
    async with service.machine("b") as machine:
        answer = await http.post("/browser/b/start")
        assert answer.json() == {"running": True, "started": True}, answer.text
        yield machine


@pytest.fixture
async def watcher(service: Service, machine: Machine) -> AsyncIterator[Watcher]:
    watcher = await Watcher.at(f"{service.ws}/browser/b/live")
    yield watcher
    await watcher.leave()


async def test_a_viewer_is_told_everything_at_first_and_sees_a_picture(watcher: Watcher) -> None:
    assert (await watcher.until("hello"))["version"] == 1
    assert (await watcher.until("state"))["browser"] == "running"
    tabs = await watcher.until("tabs")
    assert [tab["url"] for tab in tabs["tabs"]] == ["about:blank"]
    assert (await watcher.until("control"))["holder"] is None
    picture = await watcher.picture()
    assert picture.jpeg[:3] == b"\xff\xd8\xff"
    assert picture.tab == tabs["tabs"][0]["id"]
    await watcher.until("heartbeat")


async def test_a_click_in_the_live_view_reaches_the_page(watcher: Watcher, machine: Machine) -> None:
    await watcher.drive()
    await watcher.open(await pages.put(machine, "button", pages.BUTTON))
    await watcher.click(200, 150)
    await watcher.that(lambda told: told["type"] == "tabs" and told["tabs"][0]["title"] == "clicked 1")
    assert await pages.evaluate(machine, "document.title") == "clicked 1"
