"""The Activity panel: a true Chromium before the true service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.http_api.pages.visitor import House, accessible, screens, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]

AT_END = "box => box.scrollHeight - box.scrollTop - box.clientHeight <= 12"
SCROLLS = "box => box.scrollHeight > box.clientHeight + 100"


@asynccontextmanager
async def activity(browser: Browser, house: House, chat: str, **options: Any) -> AsyncIterator[Page]:
    async with visit(browser, f"{house.url}/preview/{chat}/", **options) as seen:
        await seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await seen.page.get_by_role("navigation").get_by_role("button", name="Activity").click()
        await expect(seen.page.get_by_role("region", name="Activity")).to_be_visible()
        yield seen.page
        assert seen.errors == []


async def start(house: House, chat: str, command: str, **arguments: Any) -> None:
    """A command as a model runs it, whatever comes of it."""
    given = {"command": command, "description": "A command of the test", **arguments}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bash_tool", "arguments": given}}
    headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": chat}
    (await house.client.post("/mcp", json=call, headers=headers)).raise_for_status()


async def holds(box: Locator, condition: str) -> None:
    async with asyncio.timeout(60):
        while not await box.evaluate(condition):
            await asyncio.sleep(0.05)


async def test_the_newest_output_of_a_running_call_is_in_sight_unless_the_person_scrolled_up(
    house: House, browser: Browser
) -> None:
    lines = "rm -f go; for n in $(seq 1 80); do echo line $n; done; until [ -e go ]; do sleep 0.1; done"
    command = f"{lines}; for n in $(seq 1 3); do echo more $n; sleep 0.3; done; until [ -e over ]; do sleep 0.1; done"
    async with activity(browser, house, "tail") as page:
        await page.get_by_role("button", name="Expand all").click()
        running = asyncio.create_task(start(house, "tail", command))
        output = page.get_by_role("group", name="Output")
        await expect(output).to_contain_text("line 80")
        await holds(output, SCROLLS)
        await holds(output, AT_END)
        await output.evaluate("box => { box.scrollTop = 0 }")
        await page.wait_for_timeout(0)  # the page hears that it was scrolled
        await house.bash("tail", "touch go")
        await expect(output).to_contain_text("more 3")
        assert await output.evaluate("box => box.scrollTop") == 0
        await output.evaluate("box => { box.scrollTop = box.scrollHeight }")
        await house.bash("tail", "touch over")
        await running
        await holds(output, AT_END)


@pytest.mark.parametrize(("scheme", "width"), screens())
async def test_how_and_why_calls_ended_stands_beside_what_they_printed(
    house: House, browser: Browser, scheme: Any, width: int, tmp_path: Any
) -> None:
    chat = f"ends-{scheme}-{width}"
    command = "cat <<'E'\n```\nthe last line\n```\nE\nexit 3"
    await start(house, chat, command, cwd="/tmp")
    await start(house, chat, "echo started; sleep 60", timeout=1)
    await start(house, chat, "echo started; kill -SEGV $$")
    await start(house, chat, "true")
    async with activity(browser, house, chat, scheme=scheme, width=width) as page:
        calls = page.locator(".call")
        await expect(calls).to_have_count(4)
        await expect(calls.nth(0)).to_contain_text("failed")
        await expect(calls.nth(0)).to_contain_text("exit code 3")
        await expect(calls.nth(1)).to_contain_text("timed out")
        await expect(calls.nth(2)).to_contain_text("SIGSEGV")
        await page.get_by_role("button", name="Expand all").click()
        await expect(calls.nth(0).get_by_role("group", name="What was asked for")).to_have_text(command)
        await expect(calls.nth(0)).to_contain_text("[exit code 3]")
        await expect(calls.nth(0)).to_contain_text("cwd: /tmp")
        await expect(calls.nth(1).get_by_role("group", name="Output")).to_have_text("started\n")
        await expect(calls.nth(1)).to_contain_text("[timed out after 1 s]")
        await expect(calls.nth(2)).to_contain_text("[killed by SIGSEGV]")
        await expect(calls.nth(3)).to_contain_text("It printed nothing.")
        await accessible(page)
        await page.get_by_role("button", name="Copy as Markdown").click()
        await expect(page.get_by_text("Copied as Markdown.")).to_be_visible()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert f"````bash\n{command}\n````" in copied
        assert "[timed out after 1 s]" in copied


async def test_the_stream_comes_back_after_an_answer_that_is_none(house: House, browser: Browser) -> None:
    """As a proxy gives one while the service is started again: a browser then never asks again by itself."""
    async with activity(browser, house, "proxy") as page:
        await page.route("**/events", lambda route: route.fulfill(status=502, body="bad gateway"))
        await page.reload()
        await house.bash("proxy", "echo meanwhile")
        await expect(page.get_by_text("No activity to show")).to_be_visible()
        await page.unroute("**/events")
        await expect(page.locator(".call")).to_have_count(1)
