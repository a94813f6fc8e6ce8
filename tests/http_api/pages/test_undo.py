"""Activity shows what a call changed in a file, and a person takes it back there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.http_api.pages.visitor import House, accessible, screens, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]
SHOTS = os.environ.get("CUBICLE_SHOTS")
NOTE = "/home/assistant/note.txt"


async def call(house: House, chat: str, tool: str, **arguments: Any) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": chat}
    (await house.client.post("/mcp", json=body, headers=headers)).raise_for_status()


@pytest.mark.parametrize(("scheme", "width"), screens())
async def test_a_change_is_shown_and_put_back_by_keyboard(
    house: House, browser: Browser, scheme: Any, width: int
) -> None:
    chat = f"undo-{scheme}-{width}"
    text = "".join(f"line {n}\n" for n in range(1, 41))
    await call(house, chat, "create_file", path=NOTE, content=text)
    changed = text.replace("line 10\n", "line ten\n").replace("line 12\n", "line <b>twelve</b>\n")
    await call(house, chat, "create_file", path=NOTE, content=changed)
    async with visit(browser, f"{house.url}/preview/{chat}/", scheme=scheme, width=width) as seen:
        page = seen.page
        await page.get_by_role("navigation").get_by_role("button", name="Activity").click()
        await page.get_by_role("button", name="Expand all").click()
        last = page.locator(".call").nth(1)
        diff = last.get_by_role("group", name="The change")
        await expect(diff.locator(".removed")).to_have_text(["- line 10\n", "- line 12\n"])
        await expect(diff.locator(".added")).to_have_text(["+ line ten\n", "+ line <b>twelve</b>\n"])
        await expect(diff).to_contain_text("@@ line 7 @@")
        await accessible(page)
        await last.get_by_role("button", name="Undo the change").focus()
        await page.keyboard.press("Enter")
        await expect(last.get_by_text("Undone: the file is as it was before.")).to_be_visible()
        assert await house.bash(chat, f"cat {NOTE}") == text
        await accessible(page)
        if SHOTS:
            await last.scroll_into_view_if_needed()
            await page.screenshot(path=Path(SHOTS) / f"undo-{scheme}-{width}.png")
        await last.get_by_role("button", name="Make the change again").click()
        await expect(last.get_by_role("button", name="Undo the change")).to_be_visible()
        assert await house.bash(chat, f"cat {NOTE}") == changed
        await house.bash(chat, f"echo more >> {NOTE}")
        await last.get_by_role("button", name="Undo the change").click()
        await expect(last.get_by_role("status")).to_contain_text("The file has changed since this call")
        await accessible(page)
        assert await house.bash(chat, f"tail -1 {NOTE}") == "more\n"
        assert seen.errors == []


async def test_a_large_file_is_compared_by_size_and_a_stopped_sandbox_wakes(house: House, browser: Browser) -> None:
    chat, path = "undo-large", "/home/assistant/data.bin"
    await house.bash(chat, f"head -c 60000000 /dev/zero > {path}")
    await call(house, chat, "create_file", path=path, content="small")
    async with visit(browser, f"{house.url}/preview/{chat}/") as seen:
        page = seen.page
        await page.get_by_role("navigation").get_by_role("button", name="Activity").click()
        await page.get_by_role("button", name="Expand all").click()
        last = page.locator(".call").nth(1)
        await expect(last).to_contain_text("57.2 MB before, 5 B now.")
        assert (await house.client.post(f"/api/sandboxes/{chat}/stop")).status_code == 200
        await last.get_by_role("button", name="Undo the change").click()
        await expect(last.get_by_text("Undone: the file is as it was before.")).to_be_visible()
        assert await house.bash(chat, f"stat -c %s {path}") == "60000000\n"


async def test_the_route_says_why_it_refuses(house: House) -> None:
    post = house.client.post
    assert (await post("/api/chats/undo-nobody/calls/1/undo")).status_code == 404
    await call(house, "undo-route", "create_file", path=NOTE, content="x")
    gone = await post("/api/chats/undo-route/calls/abcd-1/undo")
    assert (gone.status_code, gone.json()["detail"]) == (
        410,
        "What this call replaced is no longer kept: only the latest changes are.",
    )
    assert (await post("/api/chats/undo-route/calls/a.b/undo")).status_code == 404


async def test_the_route_of_a_change_gives_both_sides_with_their_hashes(house: House) -> None:
    chat, get = "undo-sides", house.client.get
    await call(house, chat, "create_file", path=NOTE, content="one\n")
    await call(house, chat, "create_file", path=NOTE, content="two\n")
    await call(house, chat, "view", path=NOTE)
    events = (await get(f"/api/chats/{chat}/calls", params={"before": "x"})).json()
    assert events == {"events": [], "more": False}
    async with house.client.stream("GET", f"/api/chats/{chat}/events") as stream:
        lines = (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: "))
        ended = [event async for event in _until(lines, 3)]
    id, last = ended[1]["id"], ended[2]["id"]
    earlier = (await get(f"/api/chats/{chat}/calls", params={"before": last})).json()
    assert [event["type"] for event in earlier["events"] if event["id"] == id] == ["call", "end"]
    answer = (await get(f"/api/chats/{chat}/calls/{id}/change")).json()
    assert answer["path"] == NOTE
    assert [(side["hash"], side["text"]) for side in answer["sides"]] == [
        (hashlib.sha256(text.encode()).hexdigest(), text) for text in ("one\n", "two\n")
    ]
    await house.bash(chat, f"head -c 9000000 /dev/zero > {NOTE}")
    assert (await get(f"/api/chats/{chat}/calls/{id}/change")).status_code == 413
    await house.bash(chat, f"rm {NOTE}; ln -s /etc/passwd {NOTE}")
    assert (await get(f"/api/chats/{chat}/calls/{id}/change")).status_code in (409, 410)
    assert (await get(f"/api/chats/{chat}/calls/nobody/change")).status_code == 410
    assert (await get(f"/api/chats/other/calls/{id}/change")).status_code == 404
    assert (await get(f"/api/chats/{chat}/pictures/{'0' * 64}")).status_code == 404


async def _until(events: AsyncIterator[dict[str, Any]], count: int) -> AsyncIterator[dict[str, Any]]:
    """The first so many ends of calls."""
    async for event in events:
        if event["type"] == "end":
            yield event
            count -= 1
            if not count:
                return
