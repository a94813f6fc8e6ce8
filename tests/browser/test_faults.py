"""What the pages say and do when a part behind them is killed while somebody looks."""

from __future__ import annotations

import asyncio
import os
import re
import signal

import pytest
from playwright.async_api import BrowserContext, expect

from tests.browser import pages
from tests.browser.whole import Whole, drawn, drive, live, pictured, point, shows, terminal, told

pytestmark = [pytest.mark.anyio, pytest.mark.oci, pytest.mark.timeout(300), pytest.mark.usefixtures("chromium")]

BROWSERS = "pgrep -fa 'remote-debugging-port=9222' | grep -v -e --type= -e pgrep | wc -l"
CLIENTS = "pgrep -c 'tmux: client'"
ZOMBIES = "ps -eo stat= | grep -c ^Z"


async def kill(whole: Whole, chat: str, part: str) -> None:
    match part:
        case "service":
            whole.kill()
        case "sandbox":
            os.kill((await whole.processes(chat))[0], signal.SIGKILL)
        case "chromium":
            await whole.bash(chat, "pkill -KILL -f '[r]emote-debugging-port'")
        case "tmux":
            await whole.bash(chat, "tmux kill-server")
        case _:
            await whole.bash(chat, f"pkill -KILL -x {part}")


async def becomes(whole: Whole, chat: str, command: str, wanted: str) -> None:
    """What a command counts in the sandbox comes to this."""
    async with asyncio.timeout(60):
        while (said := (await whole.bash(chat, command)).split()[0]) != wanted:
            await asyncio.sleep(0.3)
        assert said == wanted


@pytest.mark.parametrize(
    ("part", "reason", "kept"),
    [
        ("ttyd", "The program on the computer ended.", "41"),
        ("tmux", "The program on the computer ended.", ""),
        ("sandbox", "The computer went away.", ""),
        ("service", "The connection was lost.", "41"),
    ],
)
async def test_the_terminal_page_says_what_was_killed_and_comes_back(
    whole: Whole, person: BrowserContext, part: str, reason: str, kept: str
) -> None:
    chat = f"t-{part}"
    page = await terminal(person, whole, chat)
    await page.keyboard.type("mine=$((40+1)); for n in $(seq 100); do echo tick-$n-; sleep 0.1; done &\n")
    await shows(page, re.compile(r"tick-\d+-"))
    await page.evaluate("said.clear()")
    await kill(whole, chat, part)
    await told(page, reason)
    await told(page, "Reconnecting")
    if part == "service":
        await whole.start()
    await expect(page.get_by_text("Connected", exact=True)).to_be_visible(timeout=60_000)
    await page.keyboard.type("echo back-$mine-\n")
    await shows(page, f"back-{kept}-")
    await becomes(whole, chat, CLIENTS, "1")
    await page.close()
    await becomes(whole, chat, CLIENTS, "0")
    await becomes(whole, chat, ZOMBIES, "0")
    assert len(await whole.processes(chat)) < 12


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("chromium", "The browser ended."),
        ("sandbox", "The computer went away."),
        ("service", "The connection was lost."),
    ],
)
async def test_the_live_page_says_what_was_killed_and_comes_back(
    whole: Whole, person: BrowserContext, part: str, reason: str
) -> None:
    chat = f"b-{part}"
    await whole.put(chat, "moving.html", pages.MOVING)
    await whole.put(chat, "page.html", pages.BUTTON)
    page = await live(person, whole, chat)
    await drive(page, "/home/assistant/moving.html", "Moving")
    await expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=60_000)
    await page.evaluate("said.clear()")
    await kill(whole, chat, part)
    await told(page, reason)
    await told(page, "Reconnecting")
    if part == "service":
        await whole.start()
    await pictured(page)
    told_of_it = [text for text in await page.evaluate("[...said]") if reason in text]
    assert [text for text in told_of_it if "Reconnecting" not in text] == [], "it was told in two places"
    await drive(page, "/home/assistant/page.html", "Button")
    await drawn(page, 200, 150)
    await page.mouse.click(*await point(page, 200, 150))
    await expect(page.get_by_role("tab", name="clicked 1")).to_be_visible(timeout=60_000)
    await becomes(whole, chat, BROWSERS, "1")
    await becomes(whole, chat, ZOMBIES, "0")
    assert await whole.processes(chat)
    await page.close()


async def test_a_page_that_crashed_is_said_and_loaded_again(whole: Whole, person: BrowserContext) -> None:
    await whole.put("b-crash", "page.html", pages.BUTTON)
    page = await live(person, whole, "b-crash")
    await drive(page, "/home/assistant/page.html", "Button")
    await whole.bash("b-crash", "pkill -KILL -f '[t]ype=renderer'")
    await expect(page.get_by_text("This page crashed.")).to_be_visible(timeout=60_000)
    await page.get_by_role("button", name="Reload the page").click()
    await expect(page.get_by_text("This page crashed.")).to_have_count(0, timeout=60_000)
    clicked = page.get_by_role("tab", name=re.compile(r"^clicked \d+$"))
    async with asyncio.timeout(60):
        while not await clicked.count():  # the picture of before looks the same; Chromium takes no click until it draws
            await page.mouse.click(*await point(page, 200, 150))
            await asyncio.sleep(1)
    await page.close()
