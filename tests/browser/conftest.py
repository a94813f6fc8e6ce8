"""The service with true sandboxes behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext

from tests.browser import ground
from tests.browser.ground import browser_image, browser_program, oci_driver
from tests.browser.whole import KEY, Whole
from tests.conftest import absent
from tests.support.chromium import chromium as launched
from tests.support.emptying import empty


@pytest.fixture(
    scope="module", params=[pytest.param("memory", marks=pytest.mark.long), pytest.param("oci", marks=pytest.mark.oci)]
)
async def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ground.Service]:
    """One service for all tests of a file; every test takes chats of its own."""
    folder = tmp_path_factory.mktemp("service")
    driver = await asyncio.to_thread(ground.DRIVERS[request.param], folder)
    async with ground.serving(driver, folder) as running:
        yield running


@pytest.fixture
async def strict(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ground.Service]:
    """A service that takes less than usual; of what, the test says."""
    limits, options = request.param
    async with ground.serving(ground.memory_driver(tmp_path), tmp_path, limits=limits, **options) as running:
        yield running


@pytest.fixture(scope="module")
async def http(service: ground.Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.base, timeout=60, trust_env=False, verify=False) as client:
        yield client


@pytest.fixture(scope="session")
def ttyd() -> None:
    if ground.ttyd_command() is None:
        absent("needs ttyd: install it, or build an image (make image)")


@pytest.fixture(scope="session")
def chromium() -> None:
    if ground.browser_program() is None:
        absent("needs chromium: scripts/packages test")


@pytest.fixture(scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Whole]:
    """The whole service; at its end none of its sandboxes' processes is left on the host."""
    folder = tmp_path_factory.mktemp("whole")
    service = Whole(folder, await asyncio.to_thread(browser_image))
    try:
        await service.start()
        yield service
    finally:
        service.kill()
        await service.http.aclose()
        await empty(await asyncio.to_thread(oci_driver, folder))
    async with asyncio.timeout(60):
        while service.left():
            await asyncio.sleep(0.2)


@pytest.fixture(scope="module")
async def chrome() -> AsyncIterator[Browser]:
    assert browser_program()
    async with launched() as browser:
        yield browser


@pytest.fixture
async def person(whole: Whole, chrome: Browser) -> AsyncIterator[BrowserContext]:
    """Somebody who signed in."""
    context = await chrome.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(90_000)
    page = await context.new_page()
    await page.goto(f"{whole.base}/login")
    await page.get_by_label("key").fill(KEY)
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"{whole.base}/")
    await page.close()
    yield context
    await context.close()
