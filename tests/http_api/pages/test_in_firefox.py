"""What the pages show in Chromium they show in Firefox: the same tests, and the demo, with one Firefox for all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import pytest
from playwright.async_api import Browser, expect
from starlette.types import ASGIApp

from cubicle.tools.demo import Demos
from cubicle.tools.demo_script import OUTPUTS, PORT, STEPS, Step
from tests.conftest import absent
from tests.http_api.pages import (
    test_activity,
    test_activity_list,
    test_cards,
    test_files_pane,
    test_following,
    test_home_page,
    test_timeline,
    test_workspace,
    visitor,
)
from tests.http_api.pages.visitor import KEY, House, visit
from tests.support.firefox import EvalAllowed, firefox, firefox_program
from tests.support.load import IS_LOADED
from tests.support.service import serve

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(300)]

worked = test_activity_list.worked
bundle, client, served = test_cards.bundle, test_cards.client, test_cards.served
data, filmed = test_timeline.data, test_timeline.filmed

BROWSE = (
    f"cubicle-browser && cp ~/page.png {OUTPUTS}/ && "
    f"curl -sS -o /dev/null -X PUT 'http://127.0.0.1:9222/json/new?http://127.0.0.1:{PORT}/'"
)
"""The demo's step without Playwright, which the image has and the host need not."""

Shown = Callable[[House, Browser], Awaitable[None]]
SHOWN: dict[str, Shown] = {
    "control": test_following.test_two_people_hand_control_to_each_other_and_the_model_hears_of_it,
    "tail": test_activity.test_the_newest_output_of_a_running_call_is_in_sight_unless_the_person_scrolled_up,
    "edit": test_files_pane.test_a_text_is_edited_and_a_conflict_is_asked_about,
    "log": test_files_pane.test_a_log_is_followed_and_a_view_link_is_offered_no_change,
    "back": test_files_pane.test_every_panel_has_an_address_and_the_back_button_leads_to_it,
    "search": partial(
        test_files_pane.test_files_are_found_renamed_deleted_and_listed_newest_first, scheme="light", width=390
    ),
    "kinds": test_files_pane.test_pictures_are_zoomed_sheets_sorted_and_pdfs_searched,
    "link": partial(test_workspace.test_an_address_that_names_a_file_shows_it_whatever_panel_was_used_last, width=390),
}

SHOWN_AT_LEAST = ("edit", "kinds")


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
async def browser(downloads: Path) -> AsyncIterator[Browser]:
    if firefox_program() is None:
        absent("needs firefox-esr: scripts/packages test")
    expect.set_options(timeout=60_000)  # a busy machine is no failure
    async with firefox(downloads) as browser:
        yield browser


@pytest.fixture(scope="module", autouse=True)
def evaluating() -> Iterator[None]:
    """Before any service of this file."""

    def serving(app: ASGIApp, *arguments: Any, **options: Any) -> Any:
        return serve(EvalAllowed(app), *arguments, **options)

    with patch.object(visitor, "serve", serving), patch.object(test_cards, "serve", serving):
        yield


def on_the_host(step: Step) -> Step:
    if "sync_playwright" not in step.arguments.get("command", ""):
        return step
    return replace(step, arguments=step.arguments | {"command": BROWSE})


@pytest.fixture(scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """A service with a key, and a demo that needs no image."""
    steps = tuple(map(on_the_host, STEPS))
    with patch("cubicle.http_api.home.Demos", partial(Demos, steps=steps, pause=0.1)):
        async with visitor.house(tmp_path_factory.mktemp("home"), key=KEY) as running:
            yield running


async def test_home(home: House, browser: Browser) -> None:
    await test_home_page.test_a_newcomer_connects_a_client_and_sees_it_come(home, browser)


@pytest.mark.long
async def test_home_on_a_phone(home: House, browser: Browser) -> None:
    await test_home_page.test_the_home_page_keeps_nobody_out(home, browser, 390, "light")


@pytest.mark.long  # in Chromium: test_home_page.py
async def test_the_demo_plays_and_ends_with_take_control(home: House, browser: Browser) -> None:
    await home.furnish("demo")
    await home.put("demo", "~/page.png", test_files_pane.png(60, 40))
    async with visit(browser, f"{home.url}/", width=1280, first=True) as seen:
        page = seen.page
        await test_home_page.sign_in(page, home)
        await page.get_by_role("button", name="Play the demo").click()
        await expect(page).to_have_url(re.compile("/preview/demo/"))
        await expect(page.get_by_text(re.compile(r"of \d+: "))).to_be_visible()
        over = page.locator(".demo-bar").get_by_role("button", name="Take control")
        await expect(over).to_be_visible()
        await expect(over).to_be_focused()
        await expect(page.get_by_label("Address", exact=True)).to_have_value(re.compile(f"127.0.0.1:{PORT}"))
        await expect(page.locator(".live-blank")).to_be_hidden()
        await over.click()
        await expect(page.get_by_text("You have control.")).to_be_visible()
        assert seen.errors == []


@pytest.mark.long
async def test_the_workspace_follows_the_model(house: House, browser: Browser) -> None:
    folder = await test_following.furnished(house, "fox")
    async with (
        visit(browser, f"{house.url}/preview/fox/", first=True) as seen,
        test_following.model_of(house) as connect,
    ):
        await test_following.follows_the_calls(house, seen.page, "fox", folder)
        await seen.page.evaluate(test_following.WATCH)
        context = await connect("fox")
        took = await test_following.follows_the_tabs(seen.page, context, f"file://{folder}/{{}}.html")
        assert await seen.page.evaluate("window.wrong") == []
        print("seconds:", [round(one, 2) for one in took])
        assert IS_LOADED or median(took) < 1
        assert seen.errors == []


@pytest.mark.parametrize(
    "shown", [pytest.param(name, marks=[pytest.mark.long] * (name not in SHOWN_AT_LEAST)) for name in SHOWN]
)
async def test_as_in_chromium(house: House, browser: Browser, shown: str) -> None:
    await SHOWN[shown](house, browser)


async def test_activity_says_what_each_call_did(house: House, browser: Browser, worked: str) -> None:
    await test_activity_list.test_each_call_says_what_it_did_and_shows_its_result(house, browser, worked, "light", 1280)


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.long)])
async def test_replay(filmed: House, browser: Browser, width: int) -> None:
    await test_timeline.test_a_person_plays_scrubs_and_goes_live(filmed, browser, width, "light")


@pytest.mark.long
async def test_share(filmed: House, browser: Browser) -> None:
    await test_timeline.test_a_person_shares_the_replay_and_revokes_it_and_signs_out(filmed, browser)


async def test_a_shared_file_is_shown_and_downloaded(filmed: House, browser: Browser, downloads: Path) -> None:
    async with test_timeline.file_alone(filmed, browser) as page, asyncio.timeout(60):
        # A click of Playwright waits for a page that does not come: ESR tells nobody of downloads.
        await page.get_by_role("link", name="Download").evaluate("link => link.click()")
        file = downloads / "a.txt"
        while not file.exists() or file.read_bytes() != test_timeline.FILE:
            await asyncio.sleep(0.1)


@pytest.mark.long
async def test_cards_of_a_chat_client(browser: Browser, client: tuple[str, str], served: House) -> None:
    await test_cards.test_the_cards_of_a_chat_in_the_reference_host(browser, client, served)


@pytest.mark.long
async def test_the_live_browser_in_a_card(browser: Browser, client: tuple[str, str], served: House) -> None:
    await test_cards.test_the_live_browser_in_a_card(browser, client, served)
