"""One service and one Chromium for all tests of a file."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from tests.conftest import absent
from tests.http_api.pages import visitor
from tests.support.chromium import chromium


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[visitor.House]:
    async with visitor.house(tmp_path_factory.mktemp("house")) as house:
        yield house


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    if shutil.which("chromium") is None:
        absent("needs chromium: scripts/packages test")
    expect.set_options(timeout=60_000)  # a busy machine is no failure
    async with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
async def tab(browser: Browser) -> AsyncIterator[visitor.Visit]:
    """One tab for all tests of a file that only look: they `go` to what they look at, and change nothing of the tab."""
    async with visitor.visit(browser, "about:blank") as tab:
        yield tab
