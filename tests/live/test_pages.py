"""The whole service as a person meets it: its own process, the embedded driver, the pages in a real browser."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.emptying import empty
from tests.live import pages
from tests.live.ground import ROOT, browser_image, browser_program, oci_driver

pytestmark = [pytest.mark.anyio, pytest.mark.oci, pytest.mark.usefixtures("chromium")]

KEY = "a-key-of-the-test"
TERMINAL = ".xterm-accessibility"


class Whole:
    """`cubicle serve` in a process of its own; it can be killed and started again."""

    def __init__(self, folder: Path, image: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}"
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {
            **{name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")},
            "PYTHONPATH": str(ROOT / "src"),
            "DATA_DIR": str(folder / "data"),
            "PORT": str(self.port),
            "SANDBOX_IMAGE": image,
            "POOL_SIZE": "0",
            "MCP_API_KEY": KEY,
            "EGRESS": "none",
        }
        self.http = httpx.AsyncClient(
            base_url=self.base, headers={"Authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False
        )

    async def start(self) -> None:
        command = [sys.executable, "-c", "from cubicle.cli import main; main()", "serve"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, cwd=self._log.parent
            )
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if (await self.http.get("/health")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.1)
        raise AssertionError(self._log.read_text()[-3000:])

    def kill(self) -> None:
        assert self._process
        self._process.kill()
        self._process.wait(30)

    async def bash(self, chat: str, command: str) -> str:
        """What a command prints in a chat's sandbox, by MCP."""
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "bash_tool", "arguments": {"command": command, "description": "test"}},
        }
        headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": chat}
        answer = await self.http.post("/mcp", json=body, headers=headers)
        return answer.text


@pytest.fixture(scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Whole]:
    folder = tmp_path_factory.mktemp("whole")
    service = Whole(folder, await asyncio.to_thread(browser_image))
    try:
        await service.start()
        yield service
    finally:
        service.kill()
        await service.http.aclose()
        await empty(await asyncio.to_thread(oci_driver, folder))


@pytest.fixture(scope="module")
async def chrome() -> AsyncIterator[Browser]:
    assert browser_program()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
async def person(whole: Whole, chrome: Browser) -> AsyncIterator[BrowserContext]:
    """Somebody who signed in."""
    context = await chrome.new_context(viewport={"width": 1200, "height": 800})
    page = await context.new_page()
    await page.goto(f"{whole.base}/login")
    await page.get_by_label("key").fill(KEY)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/admin")
    await page.close()
    yield context
    await context.close()


async def terminal(person: BrowserContext, whole: Whole, chat: str) -> Page:
    page = await person.new_page()
    await page.add_init_script("localStorage.setItem('cubicle.terminal.reader', 'true')")
    await page.goto(f"{whole.base}/terminal/{chat}/")
    await expect(page.get_by_text("Connected", exact=True)).to_be_visible(timeout=30_000)
    button = page.get_by_role("button", name="Screen reader support")
    if await button.get_attribute("aria-pressed") != "true":
        await button.click()
    await page.locator(".xterm").click()
    return page


async def shows(page: Page, text: str) -> None:
    await expect(page.locator(TERMINAL)).to_contain_text(text, timeout=20_000)


async def test_a_person_types_in_the_terminal_page(whole: Whole, person: BrowserContext) -> None:
    one = await terminal(person, whole, "t1")
    await one.keyboard.type("mine=$((40+2)); echo sum-$mine\n")
    await shows(one, "sum-42")
    two = await terminal(person, whole, "t1")
    await shows(two, "sum-42")
    await two.keyboard.type("echo two-$((1+1))\n")
    await shows(one, "two-2")
    await one.close()
    await two.close()
    again = await terminal(person, whole, "t1")
    await again.keyboard.type("echo kept-$mine\n")
    await shows(again, "kept-42")
    await again.close()


async def test_the_page_comes_back_after_ttyd_and_after_the_service_were_killed(
    whole: Whole, person: BrowserContext
) -> None:
    page = await terminal(person, whole, "t2")
    await page.keyboard.type("mine=$((30+3)); echo ok-$mine\n")
    await shows(page, "ok-33")
    await whole.bash("t2", "pkill -KILL -x ttyd")
    await expect(page.get_by_text("Reconnecting", exact=True)).to_be_visible(timeout=20_000)
    await expect(page.get_by_text("Connected", exact=True)).to_be_visible(timeout=30_000)
    await page.keyboard.type("echo back-$mine\n")
    await shows(page, "back-33")
    whole.kill()
    await expect(page.get_by_text("Reconnecting", exact=True)).to_be_visible(timeout=20_000)
    await whole.start()
    await expect(page.get_by_text("Connected", exact=True)).to_be_visible(timeout=60_000)
    await page.keyboard.type("echo again-$mine\n")
    await shows(page, "again-33")
    await page.close()


async def test_a_click_in_the_live_page_reaches_the_sandboxs_browser(whole: Whole, person: BrowserContext) -> None:
    assert (await whole.http.post("/browser/b1/start")).status_code == 200
    quoted = f"{pages.BUTTON}{pages.NAMED_WHEN_DRAWN}".replace("'", "'\\''")
    await whole.bash("b1", f"printf %s '{quoted}' > page.html")
    page = await person.new_page()
    await page.goto(f"{whole.base}/browser/b1/")
    await page.get_by_role("button", name="Take control").click()
    await expect(page.get_by_text("You have control.")).to_be_visible(timeout=20_000)
    address = page.get_by_label("Address")
    await address.fill("file:///home/assistant/page.html")
    await address.press("Enter")
    await expect(page.get_by_role("tab", name="Drawn")).to_be_visible(timeout=40_000)
    canvas = page.get_by_label("Picture of the sandbox's browser")
    box = await canvas.bounding_box()
    assert box
    scale = box["width"] / 1280
    await page.mouse.click(box["x"] + 200 * scale, box["y"] + 150 * scale)
    await expect(page.get_by_role("tab", name="clicked 1")).to_be_visible(timeout=20_000)
    titles = [one["title"] for one in (await whole.http.get("/browser/b1/status")).json()["pages"]]
    assert titles == ["clicked 1"]
    await page.close()


async def test_playwright_connects_with_the_bearer_header(whole: Whole, chrome: Browser) -> None:
    assert (await whole.http.post("/browser/b1/start")).status_code == 200
    async with httpx.AsyncClient(base_url=whole.base, trust_env=False) as stranger:
        assert (await stranger.get("/browser/b1/json")).status_code == 401
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(
            f"{whole.base}/browser/b1", headers={"Authorization": f"Bearer {KEY}"}
        )
        page = await browser.contexts[0].new_page()
        await page.goto("data:text/html,<h1>hello</h1>")
        assert await page.inner_text("h1") == "hello"
        await page.close()
        await browser.close()
