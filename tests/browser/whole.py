"""The whole service as a person meets it: its own process, the embedded driver, the pages in a real browser."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from contextlib import suppress
from pathlib import Path

from playwright.async_api import BrowserContext, Page, expect

from tests.drivers.sight import within
from tests.support.process import ServiceProcess

expect.set_options(timeout=60_000)

KEY = "a-key-of-the-test"
TERMINAL = ".xterm-accessibility"


class Whole:
    """`cubicle serve` in a process of its own; it can be killed and started again."""

    def __init__(self, folder: Path, image: str, **environment: str) -> None:
        usual = {"SANDBOX_IMAGE": image, "POOL_SIZE": "0", "MCP_API_KEY": KEY, "EGRESS": "none"}
        self._service = ServiceProcess(folder / "data", **(usual | environment))
        self.base = f"http://127.0.0.1:{self._service.port}"
        self.http = self._service.client
        self.http.headers["Authorization"] = f"Bearer {KEY}"
        self.seen: set[tuple[int, str]] = set()
        """Processes of sandboxes that were looked at: number and time of birth."""

    async def start(self) -> None:
        await self._service.start()

    def kill(self) -> None:
        self._service.kill()

    @property
    def pid(self) -> int:
        return self._service.pid

    async def bash(self, chat: str, command: str) -> str:
        """What a command prints in a chat's sandbox, by MCP."""
        return (await self._service.bash(chat, command))[1]

    async def state(self, chat: str) -> str:
        """What the operator's table says of the chat's sandbox; "none" if it is not in it."""
        rows = (await self.http.get("/api/sandboxes")).json()["sandboxes"]
        return next((str(row["state"]) for row in rows if row["chat"] == chat), "none")

    async def put(self, chat: str, name: str, content: str) -> None:
        """A file in the home of a chat's sandbox."""
        await self.bash(chat, f"printf %s {shlex.quote(content)} > {name}")

    async def processes(self, chat: str) -> list[int]:
        """The processes of a chat's sandbox, as the host sees them; the guest is the first."""
        space = (await self.bash(chat, "readlink /proc/self/ns/pid")).strip()
        found = within(space)
        self.seen |= {(pid, _born(pid)) for pid in found}
        return found

    def left(self) -> list[int]:
        """Those of the processes that were looked at which are still there."""
        return [pid for pid, born in self.seen if born and _born(pid) == born]


def _born(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


async def terminal(person: BrowserContext, whole: Whole, chat: str) -> Page:
    await whole.bash(chat, "true")  # a page makes no sandbox by itself
    page = await person.new_page()
    await page.add_init_script(f"localStorage.setItem('cubicle.terminal.reader', 'true'); {LISTEN}")
    await page.goto(f"{whole.base}/terminal/{chat}/")
    await expect(page.get_by_text("Connected", exact=True)).to_be_visible(timeout=60_000)
    button = page.get_by_role("button", name="Screen reader support")
    if await button.get_attribute("aria-pressed") != "true":
        await button.click()
    await page.locator(".xterm").click()
    return page


async def shows(page: Page, text: str | re.Pattern[str]) -> None:
    await expect(page.locator(TERMINAL)).to_contain_text(text, timeout=60_000)


LISTEN = """new MutationObserver(() => {
  window.said ??= new Set();
  for (const notice of document.querySelectorAll('.notice, .chip, .toast')) window.said.add(notice.textContent);
}).observe(document, { subtree: true, childList: true, characterData: true })"""


async def told(page: Page, text: str) -> None:
    """Wait until the page has said this, however short: it was opened with LISTEN."""
    heard: list[str] = []
    end = time.monotonic() + 60
    while time.monotonic() < end:
        heard = await page.evaluate("[...(window.said ?? [])]")
        if any(text in said for said in heard):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"the page did not say {text!r}; it said {heard}")


async def live(person: BrowserContext, whole: Whole, chat: str) -> Page:
    """The live view of a chat's browser, with a picture in it."""
    await whole.bash(chat, "true")
    page = await person.new_page()
    await page.add_init_script(LISTEN)
    await page.goto(f"{whole.base}/browser/{chat}/")
    started = page.get_by_text(re.compile("^(Live|Idle)$"))
    button = page.get_by_role("button", name="Start the browser")
    await expect(started.or_(button).first).to_be_visible(timeout=60_000)
    if await button.count():  # to look starts none
        await button.click()
    await pictured(page)
    return page


async def pictured(page: Page) -> None:
    await expect(page.get_by_text(re.compile("^(Live|Idle)$"))).to_be_visible(timeout=60_000)
    await expect(page.get_by_text(re.compile("^Waiting for (a|the first) picture"))).to_have_count(0, timeout=60_000)


async def drive(page: Page, address: str, title: str) -> None:
    """Take control and go to a page of the sandbox."""
    await page.get_by_role("button", name="Take control").click()
    await expect(page.get_by_text("You have control.")).to_be_visible(timeout=60_000)
    bar = page.get_by_label("Address")
    await bar.fill(address)
    await bar.press("Enter")
    await expect(page.get_by_role("tab", name=title)).to_be_visible(timeout=60_000)


async def point(page: Page, x: float, y: float) -> tuple[float, float]:
    """Where a point of the sandbox's page is on the person's."""
    box = await page.get_by_label("Picture of the computer's browser").bounding_box()
    assert box
    scale = box["width"] / 1280
    return box["x"] + x * scale, box["y"] + y * scale


async def drawn(page: Page, x: float, y: float) -> None:
    """Wait until a button is in the picture here: what is pressed before it is drawn, Chromium throws away. The canvas
    is black before its first picture, and may show an earlier page in many colours: a button is light grey beside its words."""
    async with asyncio.timeout(60):
        while not await page.evaluate(IS_BUTTON, [x, y]):
            await asyncio.sleep(0.1)


IS_BUTTON = """([x, y]) => {
  const canvas = document.querySelector("canvas");
  const scale = canvas.width / 1280;
  const [red, green, blue] = canvas.getContext("2d").getImageData((x - 70) * scale, (y - 30) * scale, 1, 1).data;
  const least = Math.min(red, green, blue), most = Math.max(red, green, blue);
  return least > 220 && least < 250 && most - least < 10;
}"""
