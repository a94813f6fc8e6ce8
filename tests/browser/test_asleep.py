"""Open pages look: they neither keep a sandbox up nor start one that was stopped, and make none for a chat that is new."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.ground import browser_image, oci_driver
from tests.browser.whole import LISTEN, Whole, live, pictured, terminal
from tests.support.emptying import empty

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.oci,
    pytest.mark.real,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("chromium"),
]
IDLE_LIMIT = 14.0
STATUS_ROUTES = (
    "/terminal/{}/status",
    "/terminal/{}/sessions",
    "/terminal/{}/processes",
    "/browser/{}/status",
    "/files/{}/",
    "/api/uploads/{}",
    "/preview/{}/",
    "/api/sandboxes",
)
LOOKS = 3 * 4.0
"""Seconds in which a page looks three times whether the sandbox is up again."""


@pytest.fixture(scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Whole]:
    """The whole service, with an idle limit of seconds."""
    folder = tmp_path_factory.mktemp("asleep")
    image = await asyncio.to_thread(browser_image)
    service = Whole(folder, image, CONTAINER_MAX_AGE_HOURS=str(IDLE_LIMIT / 3600))
    try:
        await service.start()
        yield service
    finally:
        service.kill()
        await service.http.aclose()
        await empty(await asyncio.to_thread(oci_driver, folder))


async def becomes(whole: Whole, chat: str, state: str) -> None:
    async with asyncio.timeout(90):
        while await whole.state(chat) != state:
            await asyncio.sleep(0.2)


async def stays(whole: Whole, chat: str, state: str, seconds: float = LOOKS) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        assert await whole.state(chat) == state
        await asyncio.sleep(0.5)


async def workspace(person: BrowserContext, whole: Whole, chat: str, panel: str) -> Page:
    page = await person.new_page()
    await page.goto(f"{whole.base}/preview/{chat}/")
    await page.get_by_role("navigation", name="Panels").get_by_role("button", name=panel).click()
    return page


async def test_an_open_agents_panel_and_pollers_let_the_sandbox_fall_asleep(
    whole: Whole, person: BrowserContext
) -> None:
    await whole.put("idle", "note.txt", "kept")
    page = await workspace(person, whole, "idle", "Agents")
    await expect(page.get_by_text("No coding agent runs on this computer.")).to_be_visible()

    async def poll() -> None:
        while True:
            for route in STATUS_ROUTES:
                await whole.http.get(route.format("idle"))
            await asyncio.sleep(1)

    polling = asyncio.create_task(poll())
    try:
        await becomes(whole, "idle", "stopped")
        await expect(page.get_by_text("Nothing runs while the computer is down.")).to_be_visible()
        await stays(whole, "idle", "stopped")
    finally:
        polling.cancel()
    await page.get_by_role("button", name="Start again").click()
    await becomes(whole, "idle", "running")
    await expect(page.get_by_text("No coding agent runs on this computer.")).to_be_visible()
    await page.close()


async def test_a_stop_holds_whatever_pages_are_open(whole: Whole, person: BrowserContext) -> None:
    shell, screen = await terminal(person, whole, "held"), await live(person, whole, "held")
    agents = await workspace(person, whole, "held", "Agents")
    await expect(agents.get_by_text("No coding agent runs on this computer.")).to_be_visible()
    assert (await whole.http.post("/api/sandboxes/held/stop")).status_code == 200
    for page in (shell, screen):
        await expect(page.get_by_text("The operator stopped this computer.")).to_be_visible()
        await expect(page.get_by_text("Asleep", exact=True)).to_be_visible()
    await stays(whole, "held", "stopped")
    await expect(agents.get_by_role("button", name="Start again")).to_be_visible()
    await agents.close()
    await shell.reload()
    await expect(shell.get_by_role("button", name="Start again")).to_be_visible()
    await stays(whole, "held", "stopped", 2)
    await whole.bash("held", "true")  # the model's call brings them back
    await expect(shell.get_by_text("Connected", exact=True)).to_be_visible()
    await pictured(screen)
    assert (await whole.http.post("/api/sandboxes/held/stop")).status_code == 200
    await expect(screen.get_by_role("button", name="Start again")).to_be_visible()
    await shell.get_by_role("button", name="Start again").click()
    await expect(shell.get_by_text("Connected", exact=True)).to_be_visible()
    await shell.close()
    await screen.close()


async def test_a_removed_sandbox_is_not_made_again(whole: Whole, person: BrowserContext) -> None:
    shell = await terminal(person, whole, "removed")
    assert (await whole.http.delete("/api/sandboxes/removed")).status_code == 204
    await expect(shell.get_by_text("This chat has no computer yet.")).to_be_visible()
    await stays(whole, "removed", "none", 5)
    await shell.close()


async def test_pages_of_a_chat_that_is_new_make_nothing_unless_a_person_wants_it(
    whole: Whole, person: BrowserContext
) -> None:
    pages = [await person.new_page() for _ in range(3)]
    for page, path in zip(pages, ("terminal/typo/", "browser/typo/", "preview/typo/"), strict=True):
        await page.add_init_script(LISTEN)
        await page.goto(f"{whole.base}/{path}")
        await expect(page.get_by_text("This chat has no computer yet.")).to_be_visible()
    await stays(whole, "typo", "none")
    await pages[2].get_by_role("button", name="Start one now").click()
    await becomes(whole, "typo", "running")
    await expect(pages[0].get_by_text("Connected", exact=True)).to_be_visible()
    await expect(pages[2].get_by_text("This chat has no computer yet.")).to_have_count(0)
    for page in pages:
        await page.close()


async def test_a_link_to_a_file_of_a_sleeping_chat_is_one_click_away(whole: Whole, person: BrowserContext) -> None:
    await whole.put("linked", "/mnt/user-data/outputs/result.txt", "the result")
    await whole.http.post("/api/sandboxes/linked/stop")
    page = await person.new_page()
    await page.goto(f"{whole.base}/files/linked/result.txt")
    await stays(whole, "linked", "stopped", 1)
    await page.get_by_role("link", name="Wake it and open result.txt").click()
    await expect(page.get_by_text("the result")).to_be_visible()
    assert page.url == f"{whole.base}/files/linked/result.txt"
    await whole.http.post("/api/sandboxes/linked/stop")
    await page.goto(f"{whole.base}/preview/linked/result.txt")
    await expect(page.get_by_role("heading", name="This computer sleeps")).to_be_visible()
    await stays(whole, "linked", "stopped", 2)
    await page.get_by_role("button", name="Wake it").click()
    frame = page.frame_locator("iframe").get_by_text(re.compile("the result"))
    await expect(frame).to_be_visible()
    await page.close()
