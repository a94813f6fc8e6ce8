"""The admin page in a real browser: every tenant for an operator, live without polling, safe with hostile names."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from cubicle.core.chat import Chat
from cubicle.http_api.sandbox_table import natural
from tests.http_api.pages.visitor import House, Visit, accessible, house, screens, visit
from tests.support.service import ACCEPT

pytestmark = [pytest.mark.anyio, pytest.mark.real]

OPERATOR = "operator-key-of-tests"
ACME, ZETA = "acme-key-of-the-tests", "zeta-key-of-the-tests"
HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe " + "w" * 4000 + "@example.org"
SHOTS = os.environ.get("CUBICLE_SHOTS", "")
"""A folder for pictures of the pages."""


@dataclass
class Firm:
    """A service with two customers, and one who runs it."""

    house: House

    async def bash(self, key: str, chat: str, command: str = "true", user: str = "") -> None:
        params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = [(b"Accept", ACCEPT.encode()), (b"X-Chat-Id", chat.encode()), (b"X-User-Email", user.encode())]
        headers.append((b"Authorization", f"Bearer {key}".encode()))
        answer = await self.house.client.post("/mcp", json=body, headers=headers)
        assert answer.status_code == 200, answer.text

    async def overview(self) -> httpx.Response:
        return await self.house.client.get("/api/overview?tenant=*")


@pytest.fixture(scope="module")
async def firm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Firm]:
    folder = tmp_path_factory.mktemp("firm")
    keys = folder / "keys.json"
    keys.write_text(json.dumps({ACME: "acme", ZETA: "zeta"}))
    async with house(
        folder / "data", key=OPERATOR, api_keys_file=keys, tenant_max_sandboxes=40, sub_agent_tenant_budget_usd=5
    ) as running:
        made = Firm(running)
        await made.bash(ACME, "acme-1", user="ann@example.org")
        await made.bash(ACME, "acme-2", "exit 3")
        await made.bash(ZETA, "zeta-1", user=HOSTILE)
        await made.bash(OPERATOR, "main-1")
        yield made


async def sign_in(seen: Visit, key: str) -> None:
    await seen.page.get_by_label("API key").fill(key)
    await seen.page.get_by_role("button", name="Sign in").click()
    await seen.page.wait_for_url("**/admin*")
    await expect(seen.page.get_by_text("Live", exact=True)).to_be_visible()


async def picture(page: Page, name: str) -> None:
    if SHOTS:
        await page.screenshot(path=f"{SHOTS}/{name}.png")


async def test_an_operator_sees_every_tenant_and_the_service(firm: Firm, browser: Browser) -> None:
    async with visit(browser, f"{firm.house.url}/admin") as seen:
        await sign_in(seen, OPERATOR)
        page = seen.page
        for chat in ("acme-1", "acme-2", "zeta-1", "main-1"):
            await expect(page.get_by_role("rowheader", name=chat)).to_be_visible()
        numbers = page.locator(".numbers")
        for title in ("Sandboxes", "Errors of the last hour", "Egress denied", "Pool", "Isolation", "Disk", "Queue"):
            await expect(numbers).to_contain_text(title)
        await expect(page.get_by_role("img", name=re.compile("By the minute: .* calls"))).to_be_visible()
        await picture(page, "admin-operator")
        await page.get_by_role("tab", name="Tenants").click()
        row = page.get_by_role("row", name=re.compile("acme"))
        await expect(row).to_contain_text("sandboxes: 2 of 40")
        await expect(row).to_contain_text("0.00 of 5.00 USD")
        await picture(page, "admin-tenants")
        await page.get_by_role("tab", name="Problems").click()
        await expect(page.get_by_role("row", name=re.compile("acme-2"))).to_contain_text("bash_tool ended: failed")
        await picture(page, "admin-problems")
        await page.get_by_label("Tenant").select_option("zeta")
        await page.get_by_role("tab", name="Sandboxes").click()
        await expect(page.locator("tbody th")).to_have_text(["zeta-1"])
        assert "tenant=zeta" in page.url
        await page.reload()
        await expect(page.locator("tbody th")).to_have_text(["zeta-1"])
        assert (seen.errors, seen.dialogs) == ([], [])


async def test_a_customer_sees_only_their_own(firm: Firm, browser: Browser) -> None:
    async with visit(browser, f"{firm.house.url}/admin") as seen:
        await sign_in(seen, ACME)
        page = seen.page
        await expect(page.get_by_role("rowheader", name="acme-1")).to_be_visible()
        await expect(page.locator(".numbers")).not_to_contain_text("Pool")
        await expect(page.get_by_label("Tenant")).to_have_count(0)
        text = await page.content()
        assert "zeta" not in text
        assert "main-1" not in text
        await page.goto(f"{firm.house.url}/admin?tenant=zeta")
        await expect(page.get_by_role("rowheader", name="acme-1")).to_be_visible()
        assert "zeta-1" not in await page.content()


async def test_it_changes_by_itself_and_without_polling(firm: Firm, browser: Browser) -> None:
    async with visit(browser, f"{firm.house.url}/admin") as seen:
        await sign_in(seen, OPERATOR)
        page, asked = seen.page, list[str]()
        await expect(page.get_by_role("rowheader", name="acme-1")).to_be_visible()
        page.on("request", lambda request: asked.append(request.url))
        await firm.bash(ACME, "comes-by-itself", "exit 5")
        row = page.get_by_role("row", name=re.compile("comes-by-itself"))
        await expect(row).to_contain_text("running")
        assert (await firm.house.client.post("/api/sandboxes/comes-by-itself/stop?tenant=acme")).status_code == 200
        await expect(row).to_contain_text("stopped")
        assert (await firm.house.client.delete("/api/sandboxes/comes-by-itself?tenant=acme")).status_code == 204
        await expect(row).to_have_count(0)
        assert asked == []


async def test_an_operator_stops_and_removes_the_sandbox_of_a_tenant(firm: Firm, browser: Browser) -> None:
    await firm.bash(ACME, "to-stop")
    await firm.bash(OPERATOR, "to-stop")  # of another tenant, with the same name
    async with visit(browser, f"{firm.house.url}/admin") as seen:
        await sign_in(seen, OPERATOR)
        page = seen.page
        await page.get_by_role("searchbox", name="Filter sandboxes").fill("to-stop")
        await expect(page.locator("tbody th")).to_have_text(["to-stop", "to-stop"])
        await page.get_by_role("button", name="Stop the sandbox of to-stop of acme").click()
        await expect(page.get_by_role("dialog", name="Stop the sandbox of to-stop of acme?")).to_be_visible()
        await page.get_by_role("button", name="Stop it").click()
        acme = page.get_by_role("row").filter(has=page.locator("td[data-title=Tenant]", has_text="acme"))
        main = page.get_by_role("row").filter(has=page.locator("td[data-title=Tenant]", has_text="main"))
        await expect(acme).to_contain_text("stopped")
        await expect(main).to_contain_text("running")
        await page.get_by_role("button", name="Remove the sandbox of to-stop of acme").click()
        await page.get_by_role("button", name="Remove it").click()
        await expect(page.locator("tbody th")).to_have_text(["to-stop"])
        await expect(main).to_contain_text("running")


async def test_an_operator_looks_at_the_workspace_of_a_tenant_by_a_link(firm: Firm, browser: Browser) -> None:
    async with visit(browser, f"{firm.house.url}/admin") as seen:
        await sign_in(seen, OPERATOR)
        await seen.page.get_by_role("button", name="Look at acme-1 of acme").click()
        await seen.page.wait_for_url("**/preview/acme-1/**")
        await expect(seen.page.get_by_text("View only.")).to_be_visible()


async def test_hostile_names_are_text(firm: Firm, browser: Browser) -> None:
    async with visit(browser, f"{firm.house.url}/admin", width=1200) as seen:
        await sign_in(seen, OPERATOR)
        page = seen.page
        row = page.get_by_role("row", name=re.compile("zeta-1"))
        cell = row.locator("td[data-title=User]")
        await expect(cell).to_contain_text("<img src=x onerror=alert(1)>")
        text = await cell.inner_text()
        assert "\u202e" not in text
        box = await cell.bounding_box()
        assert box is not None
        assert box["width"] < 260
        assert await page.locator("img").count() == 0
        assert await page.evaluate("document.documentElement.scrollWidth") <= 1200
        assert (seen.errors, seen.dialogs) == ([], [])


async def test_the_table_is_sorted_by_the_keyboard(firm: Firm, browser: Browser) -> None:
    async with visit(browser, f"{firm.house.url}/admin") as seen:
        await sign_in(seen, OPERATOR)
        page = seen.page
        heading = page.get_by_role("columnheader", name="Chat")
        await expect(heading).to_have_attribute("aria-sort", "ascending")
        names = list(await page.locator("tbody th").all_inner_texts())
        assert names == sorted(names, key=natural)
        await heading.get_by_role("button").focus()
        await page.keyboard.press("Enter")
        await expect(heading).to_have_attribute("aria-sort", "descending")
        await expect(page.locator("tbody th").first).to_have_text(names[-1])
        await page.get_by_role("columnheader", name="Errors").get_by_role("button").press("Space")
        await expect(heading).to_have_attribute("aria-sort", "none")
        await page.get_by_role("tab", name="Sandboxes").press("ArrowRight")
        await expect(page.get_by_role("tab", name="Tenants")).to_be_focused()
        await expect(page.get_by_role("tabpanel", name=re.compile("Tenants"))).to_be_visible()


@pytest.mark.parametrize(("scheme", "width"), screens(both=True))
async def test_it_keeps_nobody_out(firm: Firm, browser: Browser, scheme: Literal["light", "dark"], width: int) -> None:
    async with visit(browser, f"{firm.house.url}/admin", width=width, scheme=scheme) as seen:
        await sign_in(seen, OPERATOR)
        page = seen.page
        for tab in ("Sandboxes", "Tenants", "Problems", "Queue"):
            await page.get_by_role("tab", name=tab).click()
            await expect(page.get_by_role("tabpanel", name=re.compile(tab))).to_be_visible()
            await accessible(page)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            await picture(page, f"admin-{tab.lower()}-{scheme}-{width}")


async def test_who_is_signed_out_meanwhile_is_told_so(firm: Firm, browser: Browser) -> None:
    async with visit(browser, f"{firm.house.url}/admin") as seen:
        await sign_in(seen, ACME)
        await expect(seen.page.get_by_role("rowheader", name="acme-1")).to_be_visible()
        await seen.page.context.clear_cookies()
        await seen.page.get_by_label("State").select_option("running")
        await expect(seen.page.get_by_role("alert")).to_contain_text("What is shown is from before")
        await expect(seen.page.get_by_role("link", name="Sign in")).to_be_visible()


@pytest.mark.timeout(300)
async def test_five_thousand_sandboxes_stay_fast(tmp_path: Path, browser: Browser) -> None:
    """Stopped ones, as they lie on disk after a restart."""
    data = tmp_path / "data"
    for name in ("memory", "memory-owners", "memory-trash", "chats"):
        (data / name).mkdir(parents=True)
    for number in range(5000):
        chat = Chat(f"many-{number}")
        (data / "memory" / f"m{number:05}").mkdir()
        os.symlink(f"m{number:05}", data / "memory-owners" / chat.digest)
        fields = {"version": 1, "tenant": chat.tenant, "chat": chat.id, "since": time.time() - number}
        (data / "chats" / chat.digest).write_text(json.dumps(fields))
    async with house(data) as running, visit(browser, f"{running.url}/admin") as seen:
        page = seen.page
        await expect(page.get_by_text("5,000 of 5,000")).to_be_visible()
        await expect(page.locator("tbody tr")).to_have_count(100)
        began = time.monotonic()
        await page.get_by_role("button", name="Next page").click()
        await expect(page.locator("tbody th").first).to_have_text("many-100")
        await page.get_by_role("searchbox", name="Filter sandboxes").fill("many-4999")
        await expect(page.locator("tbody th")).to_have_text(["many-4999"])
        assert time.monotonic() - began < 20
        await page.get_by_role("searchbox", name="Filter sandboxes").fill("")
        await expect(page.get_by_text("1 to 100 of 5,000")).to_be_visible()
        waits = []
        for _ in range(50):  # others hardly notice that somebody looks
            began = time.perf_counter()
            assert (await running.client.get("/health")).status_code == 200
            waits.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)
        assert sorted(waits)[len(waits) // 2] < 0.2
        for name in ("memory", "memory-owners"):  # at once: one by one they would take minutes
            await asyncio.to_thread(shutil.rmtree, data / name)
            (data / name).mkdir()
