"""A link changes nothing in the sandbox's browser: DevTools' GETs that do need a key in a header, or PUT."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator

import httpx
import pytest
from playwright.async_api import async_playwright, expect

from tests.conftest import absent
from tests.http_api.pages import visitor
from tests.support.chromium import chromium

pytestmark = [pytest.mark.anyio, pytest.mark.real]
CHAT = "tabs"
BROWSER = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/150.0.0.0 Safari/537.36"


@pytest.fixture(scope="module", params=[visitor.KEY, ""], ids=["with a key", "open"])
async def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[visitor.House]:
    if shutil.which("chromium") is None:
        absent("needs chromium: scripts/packages test")
    async with visitor.house(tmp_path_factory.mktemp("house"), key=request.param) as house:
        await house.furnish(CHAT)
        (await house.client.post(f"/browser/{CHAT}/start")).raise_for_status()
        yield house


async def made(house: visitor.House) -> str:
    answer = await house.client.put(f"/browser/{CHAT}/json/new?data:text/html,<title>made</title>")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def listed(house: visitor.House) -> list[str]:
    return [str(page["id"]) for page in (await house.client.get(f"/browser/{CHAT}/json/list")).json()]


async def is_gone(house: visitor.House, page: str) -> None:
    async with asyncio.timeout(60):
        while page in await listed(house):
            await asyncio.sleep(0.05)


async def test_a_link_that_a_signed_in_person_follows_closes_no_tab(house: visitor.House) -> None:
    page_id = await made(house)
    before = await listed(house)
    ways = [f"close/{page_id}", f"close/{page_id}/", f"activate/{page_id}", "new?about:blank"]
    async with chromium() as browser, visitor.visit(browser, f"{house.url}/login") as seen:
        page = seen.page
        if "Authorization" in house.client.headers:
            await page.get_by_label("API key").fill(visitor.KEY)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page).to_have_url(f"{house.url}/")
        for way in ways:
            answer = await page.goto(f"{house.url}/browser/{CHAT}/json/{way}")  # as typed
            assert answer is not None
            assert answer.status == 405
        foreign = house.url.replace("127.0.0.1", "localhost")
        await page.goto(f"{foreign}/static/icon.svg")
        for way in ways:
            address = f"{house.url}/browser/{CHAT}/json/{way}"
            for method in ("GET", "HEAD"):
                await page.evaluate(
                    "([a, method]) => fetch(a, { mode: 'no-cors', credentials: 'include', method }).catch(() => 0)",
                    [address, method],
                )
            async with page.expect_navigation(url=address) as answered:
                await page.evaluate("a => { location = a }", address)
            answer = await answered.value
            assert answer is not None
            assert answer.status == 405
            await page.goto(f"{foreign}/static/icon.svg")
    assert await listed(house) == before


@pytest.mark.parametrize("headers", [{"User-Agent": BROWSER}, {"Sec-Fetch-Site": "none"}, {"Referer": "http://x/"}])
async def test_a_browser_without_the_key_in_a_header_is_told_to_use_put(
    house: visitor.House, headers: dict[str, str]
) -> None:
    page_id = await made(house)
    link = await house.client.get(f"/preview/{CHAT}/")
    assert link.status_code == 200
    async with httpx.AsyncClient(
        base_url=house.url, trust_env=False, verify=False, headers=headers, timeout=60
    ) as client:
        answer = await client.get(f"/browser/{CHAT}/json/close/{page_id}")
        assert answer.status_code == (401 if "Authorization" in house.client.headers else 405)
        if answer.status_code == 405:
            assert answer.headers["allow"] == "PUT"
    assert page_id in await listed(house)


async def test_programs_with_the_key_or_where_none_is_needed_use_get_as_ever(house: visitor.House) -> None:
    page_id = await made(house)
    for agent in ("curl/8.0", BROWSER) if "Authorization" in house.client.headers else ("curl/8.0",):
        headers = {"User-Agent": agent}
        answer = await house.client.get(f"/browser/{CHAT}/json/activate/{page_id}", headers=headers)
        assert answer.text == "Target activated"
    assert (await house.client.get(f"/browser/{CHAT}/json/close/{page_id}")).text == "Target is closing"
    await is_gone(house, page_id)


async def test_a_signed_links_key_needs_put(house: visitor.House) -> None:
    if "Authorization" not in house.client.headers:
        return  # its links carry no signature
    made_link = await house.client.post(f"/api/links/{CHAT}?access=control")
    key = made_link.json()["url"].partition("?key=")[2]
    page_id = await made(house)
    async with httpx.AsyncClient(base_url=house.url, trust_env=False, verify=False, timeout=60) as client:
        address = f"/browser/{CHAT}/json/close/{page_id}?key={key}"
        assert (await client.get(f"/browser/{CHAT}/json/version?key={key}")).status_code == 200
        assert (await client.get(address)).status_code == 405
        assert page_id in await listed(house)
        assert (await client.put(address)).text == "Target is closing"
    await is_gone(house, page_id)


async def test_playwright_opens_and_closes_pages(house: visitor.House) -> None:
    headers = {k: v for k, v in house.client.headers.items() if k.lower() == "authorization"}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(f"{house.url}/browser/{CHAT}", headers=headers)
        page = await browser.contexts[0].new_page()
        await page.goto("data:text/html,<title>by playwright</title>")
        assert await page.title() == "by playwright"
        await page.close()
        await browser.close()
