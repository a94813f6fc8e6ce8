"""A Chromium that tests drive."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright

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


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which(SHELL) or WHOLE, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()
