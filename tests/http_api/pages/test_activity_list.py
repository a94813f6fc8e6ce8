"""The list of Activity in a true Chromium: what each call did in words, its results, hostile output, ten thousand calls."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.http_api.pages.visitor import House, Visit, accessible, screens, visit, widths

pytestmark = [pytest.mark.anyio, pytest.mark.real]

SHOTS = os.environ.get("CUBICLE_SHOTS", "")
OUT = "/mnt/user-data/outputs"
MANY = 10_000
FRAME = 1000 / 60
# What is wider than the screen.
TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("*")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 0.5)
  .map((one) => `${one.tagName}.${one.className?.baseVal ?? one.className} ${one.textContent.slice(0, 40)}`).slice(0, 12)"""

# Scrolls for some time, a part in each frame; the times between frames.
SCROLL = """async ([selector, step, milliseconds]) => {
  const box = document.querySelector(selector);
  const times = [];
  // A busy machine's Chromium has been seen to draw no more: that would be waited for forever.
  const frame = () => new Promise((done) => {
    requestAnimationFrame(done);
    setTimeout(() => done(performance.now()), 2000);
  });
  let last = await frame();
  const end = last + milliseconds;
  let direction = -1;
  while (last < end) {
    if (box.scrollTop <= 0) direction = 1;
    if (box.scrollTop + box.clientHeight >= box.scrollHeight - 1) direction = -1;
    box.scrollTop += direction * step;
    const now = await frame();
    times.push(now - last);
    last = now;
  }
  return times;
}"""
# The same of a list that costs nothing: what this machine can do now.
EMPTY = """() => {
  const box = document.createElement("div");
  box.id = "empty-list";
  box.style = "position:fixed;inset:0;overflow:auto;opacity:0.01;z-index:-1";
  box.innerHTML = '<div style="height:400000px"></div>';
  document.body.append(box);
  box.scrollTop = 200000;
}"""


def picture() -> bytes:
    """A red PNG of 32 by 32 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xd0\x30\x30" * 32) * 32
    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


async def call(house: House, chat: str, tool: str, **arguments: Any) -> None:
    """A tool as a model calls it, whatever comes of it."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": chat}
    (await house.client.post("/mcp", json=body, headers=headers)).raise_for_status()


async def bash(house: House, chat: str, command: str, description: str, **arguments: Any) -> None:
    await call(house, chat, "bash_tool", command=command, description=description, **arguments)


@asynccontextmanager
async def activity(
    browser: Browser, house: House, chat: str, events: Iterable[Mapping[str, Any]] = (), **options: Any
) -> AsyncIterator[Visit]:
    """The panel; with `events`, of a service that tells these."""
    told = "".join(f"id: x-{n}\ndata: {json.dumps(event)}\n\n" for n, event in enumerate(events))

    async def answer(route: Route) -> None:
        await route.fulfill(content_type="text/event-stream", body=f"retry: 600000\n{told}")

    async with visit(browser, "about:blank", **options) as seen:
        if told:
            await seen.page.route("**/api/chats/*/events", answer)
        await seen.page.goto(f"{house.url}/preview/{chat}/")
        await seen.page.get_by_role("navigation").get_by_role("button", name="Activity").click()
        await expect(seen.page.get_by_role("region", name="Activity")).to_be_visible()
        yield seen
        assert seen.errors == []
        assert seen.dialogs == []


async def shot(page: Page, name: str) -> None:
    if SHOTS:
        await page.screenshot(path=Path(SHOTS) / f"activity-{name}.png")


@pytest.fixture(scope="module")
async def worked(house: House) -> str:
    """A chat with calls of every kind."""
    chat = "words"
    long = "".join(f"value_{n} = {n}\n" for n in range(20_000))
    changed = long.replace("value_7 = 7\n", "value_7 = 70\n").replace("value_19990 = 19990\n", "last = True\n")
    await house.put(chat, f"{OUT}/revenue.png", picture())
    await bash(house, chat, r"printf '\033[1;32mpassed\033[0m 3\n10 %%\r100 %%\n'", "Run the tests")
    await call(house, chat, "create_file", path="/home/assistant/analyse.py", content="a = 1\nb = 2\nc = 3\n")
    await call(house, chat, "str_replace", path="/home/assistant/analyse.py", old_str="b = 2", new_str="b = 20\nd = 4")
    await call(house, chat, "create_file", path="/home/assistant/long.py", content=long)
    await call(house, chat, "create_file", path="/home/assistant/long.py", content=changed)
    for name in ("analyse.py", "long.py", ""):
        await call(house, chat, "view", path=f"/home/assistant/{name}")
    await call(house, chat, "view", path=f"{OUT}/revenue.png")
    page = "<!doctype html><title>t</title><h1>Sales</h1><script>document.body.innerHTML = 'ran'</script>"
    await call(house, chat, "create_file", path=f"{OUT}/page.html", content=page)
    await bash(house, chat, f"printf 'month,sales\\nJan,10\\nFeb,<b>20</b>\\n' > {OUT}/table.csv", "Write the table")
    await bash(house, chat, "echo before; exit 3", "Fail")
    await bash(house, chat, "sleep 60", "Wait", timeout=1)
    return chat


@pytest.mark.parametrize(("scheme", "width"), screens(1280))
async def test_each_call_says_what_it_did_and_shows_its_result(
    house: House, browser: Browser, worked: str, scheme: Any, width: int
) -> None:
    async with activity(browser, house, worked, scheme=scheme, width=width) as seen:
        page = seen.page
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        feed = page.get_by_role("feed", name="Tool calls")
        late = page.locator(".call", has_text="Ran Wait")
        await expect(late).to_contain_text("timed out after 1 s")
        failed = page.locator(".call", has_text="Ran Fail")
        await expect(failed).to_contain_text("failed · exit code 3")
        await expect(failed.get_by_role("group", name="Output")).to_have_text("before\n")  # it stays open
        await expect(feed.get_by_role("cell", name="<b>20</b>")).to_be_visible()
        await shot(page, f"end-{scheme}-{width}")
        await accessible(page)
        frame = page.frame_locator(".result.page iframe")
        await expect(frame.get_by_role("heading", name="Sales")).to_be_visible()  # its scripts did not run
        seen_picture = page.locator(".call", has_text="Looked at revenue.png")
        await seen_picture.scroll_into_view_if_needed()
        assert await seen_picture.locator(".thumb").evaluate("one => one.decode().then(() => one.naturalWidth)") == 32
        await shot(page, f"middle-{scheme}-{width}")
        await page.locator(".calls-scroll").evaluate("box => { box.scrollTop = 0 }")
        edited = page.locator(".call", has_text="Edited analyse.py")
        await expect(edited).to_contain_text("+2 −1")
        await expect(page.locator(".call", has_text="Created analyse.py")).to_be_visible()
        reads = page.get_by_role("button", name="3 files and folders")
        await expect(reads).to_have_attribute("aria-expanded", "false")
        tests = page.locator(".call", has_text="Ran Run the tests")
        await tests.locator(".call-head").click()
        output = tests.get_by_role("group", name="Output")
        await expect(output).to_have_text("passed 3\n100 %\n")
        colour = await output.locator(".b").evaluate("one => getComputedStyle(one).color")
        assert colour != await output.evaluate("one => getComputedStyle(one).color")
        await tests.get_by_role("button", name="Copy the command").click()
        assert "passed" in await page.evaluate("navigator.clipboard.readText()")
        await shot(page, f"top-{scheme}-{width}")
        await accessible(page)
        assert await page.evaluate(TOO_WIDE) == []
        await compare_whole(page)


async def compare_whole(page: Page) -> None:
    """A change that is longer than what is told of it."""
    wrote = page.locator(".call", has_text="Wrote long.py")
    await wrote.locator(".call-head").click()
    await wrote.get_by_role("button", name="Compare the whole files").click()
    diff = wrote.get_by_role("group", name="The change")
    await expect(diff.locator(".removed")).to_have_text(["- value_7 = 7\n", "- value_19990 = 19990\n"])
    await expect(diff.locator(".added")).to_have_text(["+ value_7 = 70\n", "+ last = True\n"])
    await expect(diff).to_contain_text("lines as before")


async def test_hostile_output_is_harmless_and_its_reader_stays_fast(house: House, browser: Browser) -> None:
    chat = "hostile"
    script = r"""
import sys
out = sys.stdout
out.write("<img src=x onerror=alert(1)><script>alert(2)</script>\n")
out.write("\x1b]0;stolen\x07\x1b]52;c;aGFjaw==\x07\x1b]8;;javascript:alert(3)\x07link\x1b]8;;\x07 \u202eabc\n")
out.write("x" * 3_000_000 + "\n")
for n in range(60):
    out.write(("\x1b[3%dm" % (n % 8) + "y" * 100 + "\r") * 9_500)
out.write("\n" * 30_000 + "\x1b[1;31m<b>the end</b>\x1b[0m\n")
"""
    await house.put(chat, "flood.py", script.encode())
    async with activity(browser, house, chat) as seen:
        page = seen.page
        await page.evaluate("""() => {
          window.longest = 0;
          let last = performance.now();
          setInterval(() => { const now = performance.now(); longest = Math.max(longest, now - last); last = now; }, 10);
        }""")
        title = await page.title()
        await bash(house, chat, "PYTHONIOENCODING=utf-8 python3 flood.py", "Flood")
        await bash(house, chat, "head -2 flood.py; python3 flood.py | head -2", "Start of it")
        for words in ("Ran Flood", "Ran Start of it"):
            await page.locator(".call", has_text=words).locator(".call-head").click()
        flood = page.locator(".call", has_text="Ran Flood").get_by_role("group", name="Output")
        await expect(flood).to_contain_text("<b>the end</b>")
        await expect(flood).to_contain_text("characters are left out here")
        start = page.locator(".call", has_text="Ran Start of it").get_by_role("group", name="Output")
        await expect(start).to_contain_text("<img src=x onerror=alert(1)><script>alert(2)</script>")
        await expect(start).to_contain_text("link �abc")
        assert await start.locator("a, img, script").count() == 0
        assert await page.title() == title
        assert await page.evaluate("document.querySelectorAll('*').length") < 20_000
        assert await page.evaluate("longest") < 1_500  # of which a busy machine has its share


def agent_events(at: float) -> list[dict[str, Any]]:
    def step(number: int, kind: str, text: str, **more: Any) -> dict[str, Any]:
        empty = {"tool": "", "key": "", "parent": "", "error": False}
        return {"type": "step", "id": "run", "number": number, "kind": kind, "text": text, "at": at, **empty, **more}

    usage = {"turns": 4, "input_tokens": 12_345, "output_tokens": 678, "dollars": 0.0421}
    return [
        {"type": "service", "id": "s"},
        {
            "type": "call",
            "id": "run",
            "tool": "sub_agent",
            "description": None,
            "arguments": {"prompt": "Fix the tests"},
            "at": at,
        },
        step(0, "turn", "[turn 1]"),
        step(1, "text", "I look at <b>it</b>."),
        step(2, "tool", "Find the cause", tool="Task", key="t1"),
        step(3, "tool", "pytest -q", tool="Bash", key="t2", parent="t1"),
        step(4, "result", "1 failed", key="t2", parent="t1", error=True),
        step(5, "result", "The cause is known.", key="t1"),
        {"type": "usage", "id": "run", "session": "s1", "model": "sonnet", **usage},
    ]


@pytest.mark.parametrize("width", widths(390, 1280))
async def test_an_agent_run_is_a_tree_with_its_tools_tokens_and_cost(
    house: House, browser: Browser, width: int
) -> None:
    async with activity(browser, house, "agent", agent_events(1_790_000_000), width=width) as seen:
        page = seen.page
        card = page.locator(".call", has_text="Agent works on Fix the tests")
        await expect(card).to_contain_text("sonnet · 4 turns · 12k tokens in, 678 out · $0.0421")
        inner = card.get_by_role("list", name="Steps of Task")
        await expect(inner).to_contain_text("pytest -q")
        await expect(inner).to_contain_text("1 failed")
        await expect(card).to_contain_text("I look at <b>it</b>.")
        await expect(card).to_contain_text("The cause is known.")
        await shot(page, f"agent-{width}")
        await accessible(page)
        assert await page.evaluate(TOO_WIDE) == []


def many_calls(count: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"type": "service", "id": "s"}]
    for n in range(count):
        tool, arguments = ("bash_tool", {"command": f"echo {n}\nls -l"}), {}
        if n % 5 == 1:
            tool = (
                "str_replace",
                {"path": f"/home/assistant/f{n}.py", "old_str": f"a = {n}", "new_str": f"a = {n}\nb"},
            )
        name, arguments = tool
        at, id = 1_790_000_000 + n, f"c{n}"
        end = {"type": "end", "id": id, "seconds": 0.2, "ending": "done", "error": False, "result": "", "notes": []}
        if n % 50 == 3:
            end |= {"ending": "failed", "error": True, "exit_code": 1, "notes": ["[exit code 1]"]}
        events.append(
            {"type": "call", "id": id, "tool": name, "description": f"Step {n}", "arguments": arguments, "at": at}
        )
        events.append({"type": "output", "id": id, "from": 0, "text": f"\x1b[32mline of {n}\x1b[0m\n"})
        events.append(end)
    return events


def dropped(times: list[float]) -> float:
    """The share of frames that came later than one of 60 a second may."""
    return sum(one > 25 for one in times) / max(1, len(times))


async def main_thread(page: Page) -> Callable[[], Awaitable[float]]:
    """Reads the milliseconds of processor that the page's main thread has used: script, style, layout, painting.

    What the picture itself costs is left out: without a graphics card it is drawn by the processor, in other threads.
    """
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def read() -> float:
        metrics = (await session.send("Performance.getMetrics"))["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration")) * 1000

    return read


async def test_ten_thousand_calls_scroll_at_sixty_frames_and_are_walked_by_keys(
    house: House, browser: Browser, record_property: Any
) -> None:
    async with activity(browser, house, "many", many_calls(MANY), width=1280) as seen:
        page = seen.page
        last = page.locator(".call").last
        await expect(last).to_contain_text(f"Step {MANY - 1}")
        assert int(await page.get_by_role("article").last.get_attribute("aria-setsize") or 0) >= MANY
        await page.evaluate(EMPTY)
        thread = await main_thread(page)
        figures = []
        for step in (40, 400):  # by the wheel, and by a fling
            for again in (True, True, False):  # what runs beside it only adds: it takes the processor's caches
                bare = await page.evaluate(SCROLL, ["#empty-list", step, 600])
                before = await thread()
                times = await page.evaluate(SCROLL, [".calls-scroll", step, 1500])
                spent = (await thread() - before) / len(times)
                figures.append(
                    f"{step} px a frame: {spent:.1f} ms of the main thread, {len(times) / 1.5:.0f} fps, "
                    f"{dropped(times):.0%} late; empty list {dropped(bare):.0%} late"
                )
                if spent < FRAME:
                    break
                assert again, figures
        record_property("frames", figures)
        print("\n".join(figures))
        rows = await page.locator(".virtual-row").count()
        assert rows < 60
        await by_keys(page)
        await accessible(page)


async def by_keys(page: Page) -> None:
    """The list is walked without a mouse, also to rows that are not in the document."""
    await page.locator(".call-head").last.focus()
    await page.keyboard.press("End")
    here = page.locator(".virtual-row:focus-within")
    await expect(here).to_contain_text(f"Step {MANY - 1}")
    await page.keyboard.press("ArrowUp")
    await expect(here).to_contain_text(f"Step {MANY - 2}")
    await page.keyboard.press("PageUp")
    await expect(here).to_contain_text(f"Step {MANY - 12}")
    await page.keyboard.press("Enter")
    await expect(here.get_by_role("button", expanded=True)).to_be_focused()
    await expect(here.get_by_role("group", name="Output")).to_have_text(f"line of {MANY - 12}\n")
    await page.keyboard.press("Home")
    await expect(here).to_have_attribute("aria-posinset", "1")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    await expect(here).to_contain_text("Step 0")
    await expect(here).to_be_in_viewport()
    await page.get_by_role("button", name="Latest").press("Enter")
    await expect(page.locator(".call").last).to_be_in_viewport()
    await page.get_by_role("searchbox", name="Filter calls").fill("step 7777")
    await expect(page.locator(".virtual-row", has_text="Step 7777")).to_have_count(1)


async def test_earlier_calls_come_from_the_journal_without_moving_what_is_read(house: House, browser: Browser) -> None:
    chat = "earlier"
    await asyncio.gather(*(bash(house, chat, f"echo {n}", f"Step {n:03}") for n in range(330)))
    async with activity(browser, house, chat) as seen:
        page = seen.page
        await expect(page.locator(".call")).not_to_have_count(0)
        await page.locator(".call-head").last.focus()
        await page.keyboard.press("Home")
        more = page.get_by_role("button", name="Show earlier calls")
        await expect(more).to_be_focused()
        total = int(await page.get_by_role("article").last.get_attribute("aria-setsize") or 0)
        first = page.locator(".call").first
        words = await first.locator(".call-object").inner_text()
        before = await first.evaluate("one => one.getBoundingClientRect().top")
        await more.click()
        await expect(more).to_have_count(0)  # while it is loaded, too
        async with asyncio.timeout(60):
            while int(await page.get_by_role("article").last.get_attribute("aria-setsize") or 0) < total + 25:
                await asyncio.sleep(0.05)
        kept = page.locator(".call", has_text=words)
        await expect(kept).to_be_in_viewport()
        assert abs(await kept.evaluate("one => one.getBoundingClientRect().top") - before) < 60
