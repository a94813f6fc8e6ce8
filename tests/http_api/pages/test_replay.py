"""The replay of a chat: one file, opened from disk in a real Chromium, that asks nobody for anything."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from playwright.async_api import Browser, Locator, Page, expect

from cubicle.cli import main
from tests.http_api.pages import visitor
from tests.http_api.pages.visitor import LONG, House, accessible, screens, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(600)]
SHOTS = os.environ.get("CUBICLE_SHOTS")
CALLS = 200 if LONG else 60
HOME = "/home/assistant"
HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'><!-- <script "
    "\x1b[31mred\x1b[0m \x1b]8;;http://evil.example/\x07link\x1b]8;;\x07 \u202egnp.exe\u202c \0 \x07 é ☃"
)
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def call(house: House, chat: str, tool: str, **arguments: Any) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": chat}
    (await house.client.post("/mcp", json=body, headers=headers)).raise_for_status()


async def session(house: House, chat: str) -> None:
    """Many calls: commands, edits, pictures, failures, and output that was made to break a page."""
    await house.client.post(f"/api/uploads/{chat}/note.txt", content=b"an upload")
    await house.put(chat, f"{HOME}/hostile.txt", HOSTILE.encode())
    await house.put(chat, f"{HOME}/pixel.png", PIXEL)
    await call(house, chat, "view", path=f"{HOME}/pixel.png")
    await call(house, chat, "create_file", path=f"{HOME}/a.txt", content="one\ntwo\nthree\n")
    await call(house, chat, "str_replace", path=f"{HOME}/a.txt", old_str="two", new_str="2 </script>")
    await call(house, chat, "bash_tool", command="cat hostile.txt", description=f"Show {HOSTILE}")
    await call(house, chat, "bash_tool", command="head -c 1000000 /dev/zero | tr '\\0' x", description="one line")
    await call(house, chat, "bash_tool", command="echo out; exit 3", description="fails")
    await asyncio.gather(
        *(
            call(house, chat, "bash_tool", command=f"echo call {n}; seq 20", description=f"Call number {n}")
            for n in range(CALLS - 8)
        )
    )


@pytest.fixture(scope="module")
async def replay(house: House, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that a person downloads after such a session."""
    await session(house, "replayed")
    answer = await house.client.get("/api/chats/replayed/replay")
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.content.count(b"</script>") == 2
    file = tmp_path_factory.mktemp("saved") / "replay.html"
    file.write_bytes(answer.content)
    return file


@asynccontextmanager
async def opened(browser: Browser, file: Path, scheme: Any = "light", width: int = 1200) -> AsyncIterator[Page]:
    """The file in a tab. Nothing is asked for but the file itself, and nothing fails or runs that should not."""
    context = await browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = await context.new_page()
    requests: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        await page.goto(file.as_uri())
        yield page
        assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]
        assert said == []
        assert await page.evaluate("window.hacked") is None
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    finally:
        await context.close()


def rows_of(page: Page) -> Locator:
    return page.get_by_role("list", name="What happened").get_by_role("button")


async def shot(page: Page, name: str) -> None:
    if SHOTS:
        await page.screenshot(path=Path(SHOTS) / f"{name}.png")


@pytest.mark.parametrize(("scheme", "width"), screens())
async def test_hostile_output_is_shown_and_does_nothing(
    browser: Browser, replay: Path, scheme: Any, width: int
) -> None:
    async with opened(browser, replay, scheme, width) as page:
        await expect(page.get_by_text(f"{CALLS} calls")).to_be_visible()
        await rows_of(page).filter(has_text="Show </script>").click()
        output = page.get_by_role("group", name="Output")
        await expect(output).to_contain_text("</script><script>window.hacked=1</script>")
        shown = await output.text_content() or ""
        assert "red link" in shown
        assert not set(shown) & set("\x1b\u202e\x00\x07")
        await accessible(page)
        await shot(page, f"replay-hostile-{scheme}-{width}")
        await rows_of(page).filter(has_text="one line").click()
        await expect(output).to_contain_text("characters left out")
        await rows_of(page).filter(has_text="fails").click()
        await expect(page.get_by_role("region", name="Details")).to_contain_text("exit code 3")


async def test_pictures_diffs_and_uploads_are_in_the_file(browser: Browser, replay: Path) -> None:
    async with opened(browser, replay, "dark") as page:
        rows, detail = rows_of(page), page.get_by_role("region", name="Details")
        await rows.filter(has_text="pixel.png").filter(has_text="view").click()
        await expect(detail.get_by_role("img")).to_be_visible()
        assert await detail.get_by_role("img").evaluate("one => one.naturalWidth") == 1
        await accessible(page)
        await rows.filter(has_text="str_replace").click()
        await expect(detail.locator(".added")).to_have_text("+ 2 </script>\n")
        await expect(detail.locator(".removed")).to_have_text("- two\n")
        await shot(page, "replay-diff")
        await expect(rows.filter(has_text="note.txt").filter(has_text="upload").first).to_be_attached()


async def test_it_plays_pauses_and_steps_by_keyboard(browser: Browser, replay: Path) -> None:
    async with opened(browser, replay) as page:
        rows, line = rows_of(page), page.get_by_role("slider", name="Time line")
        await line.focus()
        await page.keyboard.press("Home")
        await expect(line).to_have_value("0")
        past = page.locator(".row:not(.future)")
        await expect(past).to_have_count(1)
        await page.get_by_label("Speed").select_option("64")
        await page.get_by_role("button", name="Play").press("Enter")
        await expect(past.nth(20)).to_be_attached()
        await page.get_by_role("button", name="Pause").press("Enter")
        at = await line.input_value()
        await page.get_by_role("button", name="Next").press("Enter")
        await expect(line).to_have_value(str(int(at) + 1))
        await page.get_by_role("button", name="Back").press("Enter")
        await expect(line).to_have_value(at)
        await page.get_by_role("searchbox", name="Filter").fill("str_replace")
        await expect(rows).to_have_count(1)
        await accessible(page)


async def test_the_button_is_in_activity(house: House, browser: Browser, replay: Path) -> None:
    async with visit(browser, f"{house.url}/preview/replayed/") as seen:
        await seen.page.get_by_role("navigation").get_by_role("button", name="Activity").click()
        async with seen.page.expect_download() as saved:
            await seen.page.get_by_role("link", name="Download replay").click()
        assert (await saved.value).suggested_filename == "replayed-replay.html"
        assert await (await saved.value).failure() is None
        assert seen.errors == []


async def test_a_chat_without_a_journal_has_an_empty_replay(house: House, browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "empty.html"
    file.write_bytes((await house.client.get("/api/chats/nobody-was-here/replay")).content)
    page = await browser.new_page()
    await page.goto(file.as_uri())
    await expect(page.get_by_text("The journal of this chat is empty.")).to_be_visible()
    await accessible(page)
    await page.close()


async def test_the_file_that_the_command_line_writes_opens_without_a_service(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, data = tmp_path / "replay.html", tmp_path / "data"
    monkeypatch.setenv("DRIVER", "memory")
    monkeypatch.setenv("DATA_DIR", str(data))

    def write(chat: str) -> Result:
        return CliRunner().invoke(main, ["journal", chat, "--html", str(file)])

    async with visitor.house(data) as house:
        await house.put("told", f"{HOME}/hostile.txt", HOSTILE.encode())
        await house.put("told", f"{HOME}/pixel.png", PIXEL)
        await call(house, "told", "view", path=f"{HOME}/pixel.png")
        await call(house, "told", "bash_tool", command="cat hostile.txt", description=f"Show {HOSTILE}")
        beside = await asyncio.to_thread(write, "told")
        assert beside.exit_code == 0, beside.output
    assert (await asyncio.to_thread(write, "nobody")).exit_code == 1
    file.unlink()
    await asyncio.to_thread(file.write_text, "something older, for everybody")
    file.chmod(0o644)
    done = await asyncio.to_thread(write, "told")
    assert (done.exit_code, "open it in a browser" in done.output) == (0, True)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("replay")] == ["replay.html"]
    async with opened(browser, file) as page:
        await rows_of(page).filter(has_text="Show </script>").click()
        output = page.get_by_role("group", name="Output")
        await expect(output).to_contain_text("</script><script>window.hacked=1</script>")
        await rows_of(page).filter(has_text="pixel.png").first.click()
        await expect(page.get_by_role("region", name="Details").locator("img").first).to_be_visible()
        await accessible(page)
