"""A Chromium that tests drive.

On a busy machine one in some thousand pages draws no more, and never again: it answers all questions, but a click, a frame
and the look whether something is in sight are waited for forever. A new process that composes pictures has it draw again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from playwright.async_api import Browser, Error, Page, async_playwright

AFAR = "cubicle.example"
"""A name of this machine that the browser does not trust as it does localhost."""
ARGUMENTS = [
    "--no-sandbox",
    "--site-per-process",  # as the whole browser does by itself: a frame that hangs hangs no page
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP {AFAR} 127.0.0.1",
]
WHOLE = "/usr/bin/chromium"
SHELL = "chromium-headless-shell"
"""The same engine without the windows, menus and services around it, which take a third of the work of each visit."""


_LOOK_EVERY = 10.0
_STUCK_SECONDS = 15.0
_DRAWS = """(milliseconds) => new Promise((done) => {
  requestAnimationFrame(() => done(true));
  setTimeout(() => done(document.visibilityState !== "visible"), milliseconds);
})"""


@asynccontextmanager
async def chromium(every: float = _LOOK_EVERY, stuck: float = _STUCK_SECONDS) -> AsyncIterator[Browser]:
    """`every`: seconds between two looks whether all pages draw. `stuck`: seconds in which one that does has drawn."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which(SHELL) or WHOLE, args=ARGUMENTS)
        watch = asyncio.create_task(_keep_drawing(browser, every, stuck))
        try:
            yield browser
        finally:
            watch.cancel()
            await asyncio.wait([watch])
            await browser.close()


async def _keep_drawing(browser: Browser, every: float, stuck: float) -> None:
    while True:
        await asyncio.sleep(every)
        pages = [page for context in browser.contexts for page in context.pages]
        if not all(await asyncio.gather(*(_draws(page, stuck) for page in pages))):
            print("Chromium draws no more: it gets a new process for its pictures", file=sys.stderr)
            await _end_drawing_process(browser)


async def _draws(page: Page, stuck: float) -> bool:
    """Whether it drew, or said nothing: it may be loading, computing, or asking the person something."""
    with suppress(Error, TimeoutError):
        async with asyncio.timeout(stuck + 5):
            return bool(await page.evaluate(_DRAWS, stuck * 1000))
    return True


async def _end_drawing_process(browser: Browser) -> None:
    """Chromium starts another one, and all pages draw anew."""
    with suppress(Error):
        devtools = await browser.new_browser_cdp_session()
        for process in (await devtools.send("SystemInfo.getProcessInfo"))["processInfo"]:
            if process["type"] == "GPU":
                with suppress(ProcessLookupError):
                    os.kill(process["id"], signal.SIGKILL)
        await devtools.detach()
