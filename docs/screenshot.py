"""From the start of a service to the demo's "Take control", as a newcomer goes: a terminal, a browser, what is visible.

Keeps pictures of the way, says how long it took, and makes the picture of README.md. Started by scripts/screenshot.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import pty
import re
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, Page, async_playwright, expect

ADDRESS = re.compile(r"open (http://\S+)")
WIDE = {"width": 1440, "height": 820}
MEDIUM = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
LIMIT = 60.0
"""Seconds from the start to "Take control"."""


@dataclass
class Way:
    """What was seen on the way, and when."""

    folder: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    async def keep(self, page: Page, name: str) -> bytes:
        png = await page.screenshot()
        (self.folder / f"{name}.png").write_bytes(png)
        self.say(name)
        return png

    def say(self, what: str) -> None:
        sys.stdout.write(f"{self.seconds:5.1f} s  {what}\n")
        sys.stdout.flush()


@asynccontextmanager
async def service(command: str, folder: Path) -> AsyncIterator[str]:
    """The service on a terminal, with a data folder of its own; gives the address that it writes there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"PORT": str(port), "DATA_DIR": str(folder / "data"), "SANDBOX_IMAGE": "standard"}
    terminal, program = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *shlex.split(command), env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=program, stderr=program
    )
    os.close(program)
    try:
        async with asyncio.timeout(LIMIT):
            yield await _address(terminal)
    finally:
        if process.returncode is None:
            process.terminate()
        rest = asyncio.create_task(asyncio.to_thread(_drain, terminal))
        await process.wait()
        await rest
        gone = await asyncio.create_subprocess_exec("cubicle", "rm", "--all", "--now", env=environment)
        await gone.wait()
        os.close(terminal)


async def _address(terminal: int) -> str:
    """The first address that a person would open. What is read is written here, too."""
    loop, written, found = asyncio.get_running_loop(), "", asyncio.Event()

    def read() -> None:
        nonlocal written
        with suppress(OSError):
            written += os.read(terminal, 65536).decode(errors="replace")
        if ADDRESS.search(written):
            found.set()

    loop.add_reader(terminal, read)
    try:
        await found.wait()
    finally:
        loop.remove_reader(terminal)
        sys.stdout.write(written)
    match = ADDRESS.search(written)
    assert match is not None
    return match[1]


def _drain(terminal: int) -> None:
    """What is written to a terminal that nobody reads holds the writer up."""
    with suppress(OSError):
        while os.read(terminal, 65536):
            pass


async def look_around(browser: Browser, address: str, way: Way) -> None:
    """The home page in other sizes and colours."""
    for name, size, scheme in (("home-dark", MEDIUM, "dark"), ("home-phone", PHONE, "light")):
        page = await browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
        await page.goto(address)
        await expect(page.get_by_text("MCP URL")).to_be_visible()
        await way.keep(page, name)
        await page.close()


async def walk(browser: Browser, address: str, way: Way) -> bytes:
    """Click what is visible; the picture is that of the workspace when the script is over."""
    page = await browser.new_page(viewport=WIDE, color_scheme="light")  # type: ignore[arg-type]
    page.set_default_timeout(LIMIT * 1000)
    await page.goto(address)
    await expect(page.get_by_role("heading", name="Your AI's computer is ready")).to_be_visible()
    await expect(page.get_by_text("waiting for the first client…")).to_be_visible()
    await way.keep(page, "home")
    await page.get_by_role("button", name="Play the demo").click()
    await expect(page.get_by_text(re.compile(r"\d+ of \d+: "))).to_be_visible(timeout=LIMIT * 1000)
    await way.keep(page, "demo")
    over = page.locator(".demo-bar").get_by_role("button", name="Take control")
    await expect(over).to_be_visible(timeout=LIMIT * 1000)
    way.say('"Take control" is there')
    if way.seconds > LIMIT:
        sys.exit(f"it took more than {LIMIT:g} s")
    await expect(page.get_by_role("textbox", name="Address")).to_have_value(re.compile("127.0.0.1:8123"))
    await expect(page.locator(".live-blank")).to_be_hidden()
    picture = await way.keep(page, "over")
    await over.click()
    await expect(page.get_by_text("You have control.")).to_be_visible()
    await way.keep(page, "control")
    await page.goto(address)
    await expect(page.get_by_role("link", name=re.compile("demo"))).to_be_visible()
    await expect(page.locator(".chat-picture img")).to_be_visible()
    await way.keep(page, "home-after")
    await look_around(browser, address, way)
    return picture


def write(png: bytes, target: Path) -> None:
    """With a palette: the picture has few colours, and a third of the size."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    sys.stdout.write(f"{target}: {target.stat().st_size / 1000:.0f} KB\n")


async def main(command: str, target: Path | None, kept: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="cubicle-screenshot-") as folder:
        way = Way(kept or Path(folder))
        way.folder.mkdir(parents=True, exist_ok=True)
        async with async_playwright() as playwright, service(command, Path(folder)) as address:
            way.say(f"the terminal says {address}")
            browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            picture = await walk(browser, address, way)
            await browser.close()
    if target is not None:
        write(picture, target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", default="cubicle serve", help="the command that serves")
    parser.add_argument("--picture", type=Path, help="write the picture of README.md to this file")
    parser.add_argument("--keep", type=Path, help="keep all pictures in this folder")
    chosen = parser.parse_args()
    asyncio.run(main(chosen.serve, chosen.picture, chosen.keep))
