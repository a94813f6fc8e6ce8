"""A Firefox that tests drive: the distribution's own."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.async_api import Browser, async_playwright

RELAY = Path(__file__).with_name("bidi_relay.py")
PREFERENCES: dict[str, str | float | bool] = {
    "dom.events.testing.asyncClipboard": True,  # to read the clipboard asks nobody
}


def firefox_program() -> str | None:
    return shutil.which("firefox-esr") or shutil.which("firefox")


@asynccontextmanager
async def firefox() -> AsyncIterator[Browser]:
    program = firefox_program()
    assert program
    with TemporaryDirectory(prefix="firefox-") as folder:
        start = Path(folder) / "firefox"
        command = shlex.join([sys.executable, str(RELAY), program])
        start.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        start.chmod(0o755)
        async with async_playwright() as playwright:
            browser = await playwright.firefox.launch(
                channel="moz-firefox", executable_path=start, firefox_user_prefs=PREFERENCES
            )
            try:
                yield browser
            finally:
                await browser.close()
