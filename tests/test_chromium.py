"""A page that draws no more is helped, so that no test waits for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal

import pytest

from tests.conftest import absent
from tests.support.chromium import chromium

pytestmark = pytest.mark.real


async def test_a_page_that_draws_no_more_draws_again() -> None:
    if shutil.which("chromium") is None:
        absent("needs chromium: scripts/packages test")
    async with chromium(every=0.2, stuck=3) as browser:
        page = await browser.new_page()
        await page.set_content("<button onclick='this.textContent = 1'>0</button>")
        devtools = await browser.new_browser_cdp_session()
        processes = (await devtools.send("SystemInfo.getProcessInfo"))["processInfo"]
        [drawing] = [process["id"] for process in processes if process["type"] == "GPU"]
        os.kill(drawing, signal.SIGSTOP)
        async with asyncio.timeout(60):
            await page.get_by_role("button").click(timeout=60_000)
        assert await page.get_by_role("button").text_content() == "1"
        processes = (await devtools.send("SystemInfo.getProcessInfo"))["processInfo"]
        assert drawing not in [process["id"] for process in processes]
