"""The workspace's files: a true Chromium before the true service."""

from __future__ import annotations

import io
import wave

import pytest
from playwright.async_api import Browser, Locator, Request, expect

from tests.http_api.pages.visitor import House, accessible, visit, widths

pytestmark = [pytest.mark.anyio, pytest.mark.real]

OUTPUTS = "/mnt/user-data/outputs"
PAST_CALLS = 40


@pytest.mark.parametrize("width", widths(390, 1280))
async def test_an_address_that_names_a_file_shows_it_whatever_panel_was_used_last(
    house: House, browser: Browser, width: int
) -> None:
    await house.put("link", f"{OUTPUTS}/doc.md", b"# The linked file\n")
    async with visit(browser, f"{house.url}/preview/link/", width=width) as seen:
        activity = seen.page.get_by_role("region", name="Activity")
        heading = seen.page.frame_locator("iframe.file-frame").get_by_role("heading", name="The linked file")
        await seen.page.get_by_role("navigation").get_by_role("button", name="Activity").click()
        await expect(activity).to_be_visible()
        await seen.page.reload()
        await expect(activity).to_be_visible()  # remembered in this browser
        await seen.page.goto(f"{house.url}/preview/link/doc.md")
        await expect(heading).to_be_visible()
        await seen.page.goto(f"{house.url}/preview/link/")
        await seen.page.evaluate("""localStorage.setItem("cubicle.panes", '["activity", "agents"]')""")
        await seen.page.goto(f"{house.url}/preview/link/doc.md")
        await expect(heading).to_be_visible()
        assert seen.errors == []


async def test_past_calls_do_not_each_ask_for_the_list_of_files(house: House, browser: Browser) -> None:
    for number in range(PAST_CALLS):
        await house.bash("past", f"echo call-{number}")
    lists: list[str] = []

    def count(request: Request) -> None:
        if request.url == f"{house.url}/files/past/":
            lists.append(request.url)

    async with visit(browser, f"{house.url}/preview/past/") as seen:
        seen.page.on("request", count)
        await seen.page.reload()
        await seen.page.get_by_role("navigation").get_by_role("button", name="Activity").click()
        await expect(seen.page.locator(".call").last).to_contain_text(f"call-{PAST_CALLS - 1}")
        # What is asked for after the history: the list that has this file.
        await house.put("past", f"{OUTPUTS}/new.txt", b"new")
        await seen.page.get_by_role("navigation").get_by_role("button", name="Files").click()
        await expect(seen.page.get_by_role("treeitem", name="new.txt")).to_be_visible()
        assert 1 <= len(lists) < PAST_CALLS / 4


async def test_a_file_that_is_not_there_yet_is_shown_when_it_comes_and_when_it_changes(
    house: House, browser: Browser
) -> None:
    await house.bash("late", f"mkdir -p {OUTPUTS}/deep/er")
    async with visit(browser, f"{house.url}/preview/late/deep/er/late.txt") as seen:
        text = seen.page.frame_locator("iframe.file-frame").locator(".cm-content")
        await expect(seen.page.get_by_role("heading", name="There is no such file yet")).to_be_visible()
        await house.put("late", f"{OUTPUTS}/deep/er/late.txt", b"first words\n")
        await expect(text).to_contain_text("first words")
        await house.put("late", f"{OUTPUTS}/deep/er/late.txt", b"other and more words\n")
        await expect(text).to_contain_text("other and more words")
        await house.bash("late", f"rm {OUTPUTS}/deep/er/late.txt")
        await expect(seen.page.get_by_role("heading", name="There is no such file yet")).to_be_visible()
        assert seen.errors == []


@pytest.mark.parametrize(
    ("address", "width"),
    [
        ("sub/inner/", 1280),
        ("sub/inner", 390),
        ("outputs/sub/inner/", 1280),
        pytest.param("sub/inner/", 390, marks=pytest.mark.long),
        pytest.param("sub/inner", 1280, marks=pytest.mark.long),
        pytest.param("outputs/sub/inner/", 390, marks=pytest.mark.long),
    ],
)
async def test_an_address_that_names_a_folder_opens_it_in_the_tree(
    house: House, browser: Browser, address: str, width: int
) -> None:
    await house.put("folder", f"{OUTPUTS}/sub/inner/leaf.txt", b"green")
    async with visit(browser, f"{house.url}/preview/folder/{address}", width=width) as seen:
        leaf = seen.page.get_by_role("treeitem", name="leaf.txt")
        await expect(leaf).to_be_visible()
        await expect(seen.page.locator(".file-view")).to_have_count(0)
        await leaf.click()
        await expect(seen.page.frame_locator("iframe.file-frame").locator(".cm-content")).to_have_text("green")
        assert seen.errors == []


@pytest.mark.parametrize("width", widths(390, 1280))
async def test_the_activity_says_how_far_back_it_reaches(house: House, browser: Browser, width: int) -> None:
    """Uploads and starts are shown beside the calls."""
    chat = f"reach-{width}"
    (await house.client.post(f"/api/uploads/{chat}/before.txt", content=b"before")).raise_for_status()
    async with visit(browser, f"{house.url}/preview/{chat}/", width=width) as seen:
        await seen.page.get_by_role("navigation").get_by_role("button", name="Activity").click()
        activity = seen.page.get_by_role("region", name="Activity")
        await expect(activity.get_by_role("heading", name="No calls yet")).to_be_visible()
        await expect(activity).to_contain_text("Uploaded before.txt")
        await house.bash(chat, "echo after")
        await expect(seen.page.locator(".call")).to_have_count(1)
        await expect(activity).to_contain_text("The latest calls, as the journal has them.")
        await expect(activity).not_to_contain_text("No calls yet")
        assert seen.errors == []


async def test_links_and_pipes_are_shown_as_what_they_are(house: House, browser: Browser) -> None:
    await house.put("odd", f"{OUTPUTS}/sub/true.md", b"# Found\n")
    await house.bash(
        "odd", f"cd {OUTPUTS} && ln -s sub/true.md good.md && ln -s sub way && ln -s /etc/passwd bad && mkfifo pipe"
    )
    async with visit(browser, f"{house.url}/preview/odd/") as seen:

        def row(name: str) -> Locator:
            return seen.page.get_by_role("treeitem", name=name, exact=True)

        await row("good.md link").click()
        heading = seen.page.frame_locator("iframe.file-frame").get_by_role("heading", name="Found")
        await expect(heading).to_be_visible()
        await expect(row("pipe special")).to_be_disabled()
        await row("pipe special").click(force=True)
        await row("bad link").click()
        await expect(seen.page.get_by_role("heading", name="This link leads to nothing")).to_be_visible()
        assert seen.page.url == f"{house.url}/preview/odd/bad"
        within = seen.page.get_by_role("treeitem", name="true.md 8 B")  # and when it was written
        await row("way link").click()
        await within.click()
        await expect(heading).to_be_visible()
        await row("way link").click()
        await expect(within).to_have_count(0)
        await row("way link").click()
        await expect(within).to_be_visible()
        await accessible(seen.page)
        assert seen.errors == []


def tone() -> bytes:
    """A second of sound."""
    whole = io.BytesIO()
    with wave.open(whole, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\0\x20\0\xe0" * 4000)
    return whole.getvalue()


async def test_sound_is_read_and_what_the_browser_cannot_show_says_so(house: House, browser: Browser) -> None:
    await house.put("media", f"{OUTPUTS}/tone.wav", tone())
    for name in ("broken.mp4", "broken.mp3", "broken.png"):
        await house.put("media", f"{OUTPUTS}/{name}", b"none of these")
    async with visit(browser, f"{house.url}/preview/media/tone.wav") as seen:
        sound = seen.page.get_by_label("tone.wav", exact=True)
        await expect(sound).to_have_js_property("duration", 1)
        for name in ("broken.mp4", "broken.mp3", "broken.png"):
            await seen.page.get_by_role("treeitem", name=name).click()
            shown = seen.page.get_by_role("region", name=f"File {name}")
            await expect(shown.get_by_role("heading", name="This file cannot be shown")).to_be_visible()
        await seen.page.get_by_role("treeitem", name="tone.wav").click()
        await expect(sound).to_be_visible()
        assert seen.errors == []
