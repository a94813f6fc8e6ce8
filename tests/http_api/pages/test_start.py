"""What a person sees of a page whose script does not start: words, not a blank page."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.http_api.pages.visitor import House, accessible, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]

PAGES = ["/preview/blank/", "/preview/blank/?embed=1", "/browser/blank/", "/terminal/blank/", "/admin", "/login"]
SENTENCE = "Its script did not load, or failed."


async def _replace_scripts(page: Page, body: str | None) -> None:
    async def answer(route: Route) -> None:
        if body is None:
            await route.abort()
        else:
            await route.fulfill(body=body, content_type="text/javascript", headers={"Access-Control-Allow-Origin": "*"})

    await page.route("**/static/assets/*.js", answer)


@pytest.mark.parametrize(
    ("path", "script"),
    [
        # Every page, and every fault; all of both in the long version.
        pytest.param(path, script, id=f"{name}-{path}", marks=[pytest.mark.long] * (number % 2 != turn))
        for number, path in enumerate(PAGES)
        for turn, (name, script) in enumerate({"lost": None, "throws": "throw new Error('no')"}.items())
    ],
)
async def test_a_page_whose_script_does_not_start_says_so_and_a_reload_mends_it(
    house: House, browser: Browser, path: str, script: str | None
) -> None:
    async with visit(browser, "about:blank", width=390) as seen:
        await _replace_scripts(seen.page, script)
        await seen.page.goto(f"{house.url}{path}")
        sentence = seen.page.get_by_text(SENTENCE)
        await expect(sentence).to_be_visible()
        await accessible(seen.page)
        await seen.page.unroute("**/static/assets/*.js")
        await seen.page.get_by_role("link", name="Reload the page").click()
        await expect(sentence).to_have_count(0)
        await expect(seen.page.locator("#app")).not_to_be_empty()
        assert not [error for error in seen.errors if "Content Security Policy" in error]


async def test_a_page_that_cannot_be_drawn_says_so(house: House, browser: Browser) -> None:
    async with visit(browser, "about:blank") as seen:
        await seen.page.add_init_script("""
            Object.defineProperty(EventTarget.prototype, "addEventListener", { value() { throw new Error("no"); } });
        """)
        await seen.page.goto(f"{house.url}/admin")
        await expect(seen.page.get_by_text(SENTENCE)).to_be_visible()


async def test_a_browser_that_runs_no_scripts_is_told_what_the_page_needs(house: House, browser: Browser) -> None:
    context = await browser.new_context(java_script_enabled=False)
    context.set_default_timeout(60_000)
    try:
        page = await context.new_page()
        await page.goto(f"{house.url}/admin")
        await expect(page.get_by_text("see whether the browser lets JavaScript run")).to_be_visible()
    finally:
        await context.close()


async def test_the_sentence_is_not_seen_while_the_script_is_on_its_way(house: House, browser: Browser) -> None:
    """Also for people who want no motion: what waits there is not motion."""
    context = await browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(60_000)
    try:
        page = await context.new_page()
        await page.route("**/static/assets/*.js", lambda route: None)
        await page.goto(f"{house.url}/admin", wait_until="commit")
        waiting = page.locator(".unstarted")
        await waiting.wait_for(state="attached")
        delay = await waiting.evaluate("e => getComputedStyle(e).animationDelay")
        assert delay == "4s"
    finally:
        await context.close()
