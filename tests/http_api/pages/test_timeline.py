"""The replay in the pages, and what people share: in a real Chromium, of a sandbox with a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from playwright.async_api import Browser, Page, Route, expect

from cubicle.core.chat import Chat
from tests.conftest import absent
from tests.http_api.pages.test_admin import picture
from tests.http_api.pages.test_replay import call
from tests.http_api.pages.visitor import KEY, House, Visit, accessible, house, screens, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(300)]
CHAT = "film"
FILE = b"hello of the file"
COLOURS = {"Red": "#c00", "Blue": "#00c"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("film")


@pytest.fixture(scope="module")
async def filmed(data: Path) -> AsyncIterator[House]:
    """A chat whose model showed two pages while a command ran."""
    with patch("cubicle.browser.frame_recorder.EVERY", 0.3):
        async with house(data, key=KEY, preview_public="main") as running:
            await running.furnish(CHAT)
            await running.put(CHAT, "/mnt/user-data/outputs/a.txt", FILE)
            for title, colour in COLOURS.items():
                html = f"<title>{title}</title><body style='background:{colour}'><h1>{title}</h1>"
                await running.put(CHAT, f"/home/assistant/{title}.html", html.encode())
            started = await running.client.post(f"/browser/{CHAT}/start")
            if started.status_code == 503:
                absent("needs a browser in the sandbox")
            assert started.status_code == 200, started.text
            async with asyncio.timeout(120), asyncio.TaskGroup() as group:
                group.create_task(running.bash(CHAT, "until [ -e over ]; do sleep 0.1; done; echo the end"))
                for title in COLOURS:
                    address = f"file:///home/assistant/{title}.html?token=secret"
                    await running.client.put(f"/browser/{CHAT}/json/new?{address}")
                    await framed(running, title)
                await running.bash(CHAT, "touch over")
            yield running


async def framed(running: House, title: str) -> None:
    """A picture of this page was taken."""
    while True:
        frames = (await running.client.get(f"/api/chats/{CHAT}/timeline")).json()["frames"]
        if any(frame["title"] == title for frame in frames):
            return
        await asyncio.sleep(0.1)


async def shared(running: House, **asked: str) -> str:
    made = await running.client.post(f"/api/links/{CHAT}", params={"hours": "1", "access": "view", **asked})
    return str(made.json()["url"])


async def sign_in(page: Page, target: str) -> None:
    await page.get_by_label("API key").fill(KEY)
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**{target}")


async def test_pictures_are_of_the_pages_and_hold_no_query(filmed: House) -> None:
    frames = (await filmed.client.get(f"/api/chats/{CHAT}/timeline")).json()["frames"]
    titles = [frame["title"] for frame in frames]
    assert {"Red", "Blue"} <= set(titles)
    assert set(titles[titles.index("Blue") :]) == {"Blue"}  # of the page in front, and of none behind it
    assert all("secret" not in frame["url"] + frame["title"] for frame in frames)
    assert any(frame["url"] == "file:///home/assistant/Red.html" for frame in frames)
    answer = await filmed.client.get(f"/api/chats/{CHAT}/frames/{frames[-1]['id']}")
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert answer.content.startswith(b"\xff\xd8\xff")
    assert len(answer.content) < 100_000
    newest = await filmed.client.get(f"/api/chats/{CHAT}/frames/newest")
    assert newest.content == answer.content
    assert (await filmed.client.get("/api/chats/another/frames/newest")).status_code == 404
    assert (await filmed.client.get(f"/api/chats/another/frames/{frames[-1]['id']}")).status_code == 404


@pytest.mark.parametrize(("scheme", "width"), screens(1280))
async def test_a_person_plays_scrubs_and_goes_live(filmed: House, browser: Browser, width: int, scheme: Any) -> None:
    async with visit(browser, await shared(filmed), width=width, scheme=scheme) as seen:
        page = seen.page
        if width < 720:
            await page.get_by_role("button", name="More", exact=True).click()
            await accessible(page)
            await page.get_by_role("menuitem", name="Replay").click()
        else:
            await page.get_by_role("link", name="Replay", exact=True).click()
        await page.wait_for_url(f"**/replay/{CHAT}/")
        line = page.get_by_label("Time line")
        stage = page.get_by_role("region", name="Browser", exact=True)
        await expect(stage.get_by_role("img", name="Blue")).to_be_visible()
        await accessible(page)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await picture(page, f"replay-{width}")
        await line.focus()
        await page.keyboard.press("Home")
        await expect(line).to_have_value("0")
        await expect(stage.get_by_text("The browser was not used yet.")).to_be_visible()
        last = await line.get_attribute("max")
        assert last is not None
        for place in range(int(last)):
            await line.fill(str(place))
            if await stage.get_by_role("img", name="Red").count():
                break
        await expect(stage.get_by_role("img", name="Red")).to_be_visible()
        await page.get_by_role("combobox", name="Speed").select_option("16")
        await page.get_by_role("button", name="Play").click()
        await expect(page.get_by_role("button", name="Step on")).to_be_disabled()
        await expect(stage.get_by_role("img", name="Blue")).to_be_visible()
        await expect(page.get_by_role("button", name="Play")).to_be_visible()
        await page.get_by_role("button", name="Jump to live").click()
        live = page.get_by_role("region", name="Live browser")
        await expect(live.get_by_label("Picture of the computer's browser")).to_be_visible()
        await call(filmed, CHAT, "bash_tool", command="true", description=f"new at {width}, {scheme}")
        await expect(page.get_by_text(f"new at {width}, {scheme}").first).to_be_visible()
        assert_clean(seen)


async def test_the_replay_hears_of_news_after_an_answer_that_was_no_stream(filmed: House, browser: Browser) -> None:
    """As a proxy gives one while the service is started again."""

    async def refuse(route: Route) -> None:
        await route.fulfill(status=503)

    async with visit(browser, await shared(filmed)) as seen:
        page = seen.page
        # Each of them, until one was answered: that of the page before may be refused, and ends with its page.
        await page.route(f"**/api/chats/{CHAT}/events", refuse)
        async with page.expect_response(lambda answer: answer.status == 503):
            await page.goto(f"{filmed.url}/replay/{CHAT}/")
        await page.unroute(f"**/api/chats/{CHAT}/events", refuse)
        await expect(page.get_by_label("Time line")).to_be_visible()
        await call(filmed, CHAT, "bash_tool", command="true", description="after the refusal")
        await expect(page.get_by_text("after the refusal").first).to_be_visible()


async def test_news_leave_a_person_where_they_went_while_the_news_were_on_their_way(
    filmed: House, browser: Browser
) -> None:
    asked, moved = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        asked.set()
        await moved.wait()
        await route.continue_()

    async with visit(browser, await shared(filmed)) as seen:
        page = seen.page
        await page.goto(f"{filmed.url}/replay/{CHAT}/")
        line = page.get_by_label("Time line")
        await expect(page.get_by_role("button", name="Step on")).to_be_disabled()  # at the end, where one follows
        await page.route(f"**/api/chats/{CHAT}/timeline*", late)
        await call(filmed, CHAT, "bash_tool", command="true", description="on its way")
        async with asyncio.timeout(60):
            await asked.wait()
        await line.focus()
        await page.keyboard.press("Home")
        moved.set()
        await expect(page.get_by_text("on its way").first).to_be_visible()
        await expect(line).to_have_value("0")


def assert_clean(seen: Visit) -> None:
    assert seen.errors == []
    assert seen.dialogs == []


async def test_a_person_shares_the_replay_and_revokes_it_and_signs_out(filmed: House, browser: Browser) -> None:
    async with visit(browser, f"{filmed.url}/preview/{CHAT}/", width=1280) as seen:
        page = seen.page
        await sign_in(page, f"/preview/{CHAT}/")
        await page.get_by_role("button", name="Share", exact=True).click()
        dialog = page.get_by_role("dialog", name="Share")
        await dialog.get_by_role("combobox", name="What").select_option("replay")
        await dialog.get_by_role("combobox", name="For", exact=True).select_option("1")
        await dialog.get_by_role("textbox", name="Whom it is for").fill("Ann")
        await dialog.get_by_role("button", name="Make link").click()
        url = await dialog.get_by_role("textbox", name="Link", exact=True).input_value()
        await accessible(page)
        await picture(page, "share")
        async with visit(browser, url) as guest:
            await expect(guest.page.get_by_role("img", name="Blue")).to_be_visible()
            await expect(guest.page.get_by_role("button", name="Jump to live")).to_have_count(0)
            await expect(guest.page.get_by_role("button", name="Share", exact=True)).to_have_count(0)
            await guest.page.reload()
            await expect(guest.page.get_by_role("img", name="Blue")).to_be_visible()
            await guest.page.goto(url.replace("/replay/", "/preview/"))
            await expect(guest.page.get_by_text("opens one file or the replay")).to_be_visible()
            row = dialog.get_by_role("listitem").filter(has_text="Ann")
            await row.get_by_role("button", name="Revoke").click()
            await expect(row).to_have_count(0)
            await guest.page.goto(url)
            await expect(guest.page.get_by_label("API key")).to_be_visible()
        await dialog.get_by_role("button", name="Close").click()
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("API key")).to_be_visible()
        await page.goto(f"{filmed.url}/preview/{CHAT}/")
        await expect(page.get_by_label("API key")).to_be_visible()


async def test_a_person_shares_a_port_and_makes_it_private_again(filmed: House, browser: Browser) -> None:
    serving = (
        "python3 -m http.server 8125 >/dev/null 2>&1 & until : </dev/tcp/127.0.0.1/8125; do sleep 0.1; done 2>/dev/null"
    )
    await filmed.bash(CHAT, serving)
    async with visit(browser, f"{filmed.url}/preview/{CHAT}/", width=390, scheme="dark") as seen:
        page = seen.page
        await sign_in(page, f"/preview/{CHAT}/")
        await page.get_by_role("button", name="More", exact=True).click()
        await page.get_by_role("menuitem", name="Share").click()
        dialog = page.get_by_role("dialog", name="Share")
        await dialog.get_by_role("combobox", name="What").select_option("port:8125")
        await dialog.get_by_role("button", name="Make link").click()
        url = await dialog.get_by_role("textbox", name="Link", exact=True).input_value()
        assert "8125" in url
        row = dialog.get_by_role("listitem").filter(has_text="Port 8125")
        await expect(row.get_by_role("button", name="Copy")).to_be_visible()
        await accessible(page)
        await picture(page, "share-port")
        await row.get_by_role("button", name="Revoke").click()
        await expect(row).to_have_count(0)
        listed = (await filmed.client.get(f"/api/chats/{CHAT}/ports")).json()["ports"]
        assert [one["public"] for one in listed if one["port"] == 8125] == [None]
        await dialog.get_by_role("button", name="Close").click()
        await page.get_by_role("button", name="More", exact=True).click()
        await page.get_by_role("menuitem", name="Sign out").click()
        await expect(page.get_by_label("API key")).to_be_visible()


@asynccontextmanager
async def file_alone(filmed: House, browser: Browser) -> AsyncIterator[Page]:
    """The page of a link to one file."""
    url = await shared(filmed, opens="file", path="outputs/a.txt")
    async with visit(browser, url) as seen:
        frame = seen.page.frame_locator("iframe")
        await expect(frame.get_by_text(FILE.decode())).to_be_visible()
        await expect(seen.page.get_by_role("navigation", name="Panels")).to_have_count(0)
        await expect(seen.page.get_by_role("heading", name="a.txt", level=2)).to_be_visible()
        yield seen.page
        await accessible(seen.page)
        await picture(seen.page, "shared-file")
        assert_clean(seen)


async def test_a_link_to_a_file_shows_the_file_alone(filmed: House, browser: Browser) -> None:
    async with file_alone(filmed, browser) as page:
        async with page.expect_download() as download:
            await page.get_by_role("link", name="Download").click()
        assert (await download.value).suggested_filename == "a.txt"


async def test_pictures_go_with_the_chat(filmed: House, data: Path) -> None:
    folder = data / "frames" / Chat(CHAT).digest
    assert folder.is_dir()
    assert (await filmed.client.delete(f"/api/sandboxes/{CHAT}")).status_code == 204
    assert not folder.exists()
    after = (await filmed.client.get(f"/api/chats/{CHAT}/timeline")).json()
    assert (after["frames"], after["entries"]) == ([], [])
