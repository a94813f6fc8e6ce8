"""A Firefox that tests drive: the distribution's own, by WebDriver BiDi."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright


def firefox_program() -> str | None:
    return shutil.which("firefox-esr") or shutil.which("firefox")


@asynccontextmanager
async def firefox() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.firefox.launch(channel="moz-firefox", executable_path=firefox_program())
        try:
            yield browser
        finally:
            await browser.close()
