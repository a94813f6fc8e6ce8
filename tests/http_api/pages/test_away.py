"""The pages while the service cannot be reached, and the operator's table by name."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.http_api.pages.visitor import House, accessible, visit, widths

pytestmark = [pytest.mark.anyio, pytest.mark.real]


@pytest.mark.parametrize("width", widths(390, 1200))
async def test_the_workspace_says_that_the_service_cannot_be_reached_and_when_it_can_again(
    house: House, browser: Browser, width: int
) -> None:
    await house.bash("away", "true")
    async with visit(browser, f"{house.url}/preview/away/", width=width) as seen:
        chips = seen.page.get_by_role("status", name="What runs on the computer")
        lost = chips.get_by_text("Service not reachable")
        await expect(seen.page.get_by_role("treeitem").first).to_be_visible()
        await expect(lost).to_have_count(0)
        await seen.page.context.set_offline(True)
        await expect(lost).to_be_visible()
        await accessible(seen.page)
        await seen.page.context.set_offline(False)
        await expect(lost).to_have_count(0)


async def test_the_table_of_a_service_that_cannot_be_reached_says_so_and_asks_nobody_to_sign_in(
    house: House, browser: Browser
) -> None:
    await house.bash("away", "true")
    async with visit(browser, f"{house.url}/admin") as seen:
        row = seen.page.get_by_role("row", name="away")
        alert = seen.page.get_by_role("alert")
        await expect(row).to_be_visible()
        await seen.page.context.set_offline(True)
        await expect(alert).to_contain_text("The service cannot be reached. What is shown is from before")
        await expect(seen.page.get_by_role("link", name="Sign in")).to_have_count(0)
        await expect(row).to_be_visible()
        await seen.page.context.set_offline(False)
        await expect(alert).to_have_count(0)


async def test_the_table_is_sorted_by_name_and_its_buttons_say_whose_they_are(house: House, browser: Browser) -> None:
    for chat in ("row-10", "row-9", "row-1"):
        await house.bash(chat, "true")
    async with visit(browser, f"{house.url}/admin") as seen:
        await seen.page.get_by_role("searchbox", name="Filter sandboxes").fill("row-")
        await expect(seen.page.locator("tbody th")).to_have_text(["row-1", "row-9", "row-10"])
        await seen.page.get_by_role("button", name="Stop the sandbox of row-9", exact=True).click()
        await expect(seen.page.get_by_role("dialog", name="Stop the sandbox of row-9?")).to_be_visible()
        await seen.page.keyboard.press("Escape")
        await expect(seen.page.get_by_role("dialog")).to_have_count(0)
        await expect(seen.page.get_by_role("button", name="Stop the sandbox of row-9", exact=True)).to_be_focused()
        await expect(seen.page.get_by_role("button", name="Remove the sandbox of row-9", exact=True)).to_be_visible()
