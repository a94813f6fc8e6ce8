"""A person at the pages: the whole service over the memory driver, and a Chromium in front of it."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from axe_playwright_python.base import AxeResults
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Error, Page, Response

from cubicle import settings
from cubicle.app import running
from cubicle.sandbox.driver import Driver
from tests.browser import ground
from tests.support.emptying import empty
from tests.support.service import serve

AXE = Axe()
LONG = bool(os.environ.get("CUBICLE_LONG"))
KEY = "key-of-the-tests"
NOT_THE_PAGES = (
    "was interrupted while the page was loading.",  # of an event stream, when a page is left: before it could close it
    "match the recipient window\u2019s origin",  # of axe, which asks every frame
)
"""What Firefox writes to the console that is no fault of the pages."""
NOT_ESTABLISHED = re.compile(r"can\u2019t establish a connection to the server at (\S+)\.$")
"""The same of an event stream that was not open yet when the page was left, and of one that the service refused."""


@dataclass
class House:
    """The running service."""

    url: str
    client: httpx.AsyncClient

    async def bash(self, chat: str, command: str) -> str:
        """What a command prints in the chat's sandbox; run as a model runs it."""
        return str((await self.call(chat, "bash_tool", command=command, description="test"))[0]["text"])

    async def all_text(self, chat: str, command: str) -> str:
        """All that the model is told in the answer."""
        blocks = await self.call(chat, "bash_tool", command=command, description="test")
        return "\n".join(str(block.get("text", "")) for block in blocks)

    async def call(self, chat: str, tool: str, **arguments: str) -> list[dict[str, Any]]:
        """The content of a tool's answer."""
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": arguments},
        }
        headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": chat}
        answer = await self.client.post("/mcp", json=call, headers=headers)
        answer.raise_for_status()
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")] or [answer.text]
        result = json.loads(lines[-1])["result"]
        assert not result["isError"], result
        content: list[dict[str, Any]] = result["content"]
        return content

    async def put(self, chat: str, path: str, content: bytes, mode: str = "644") -> None:
        """A file in the sandbox, written from inside."""
        encoded = base64.b64encode(content).decode()
        await self.bash(
            chat, f'mkdir -p "$(dirname {path})" && echo {encoded} | base64 -d > {path} && chmod {mode} {path}'
        )

    async def furnish(self, chat: str) -> None:
        """The programs that the image would bring."""
        command, browser = ground.ttyd_command(), ground.browser_program()
        if command:
            await self.put(chat, "~/.local/bin/ttyd", f'#!/bin/sh\n{command} "$@"\n'.encode(), "755")
        if browser:
            await self.put(chat, "~/.local/bin/cubicle-browser", browser.read_bytes(), "755")


@dataclass
class Visit:
    """One tab of the person, and what went wrong in it."""

    page: Page
    dialogs: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    """Addresses that the service answered with no success."""

    def watch(self) -> None:
        self.page.on("response", self._answered)
        self.page.on("dialog", self._dialog)
        self.page.on("pageerror", self._failed)
        self.page.on("console", self._said)

    async def go(self, address: str, width: int = 1200) -> None:
        """To another page in the same tab, for half of what a visit costs. What went wrong before is forgotten."""
        await self.page.goto("about:blank")
        await self.page.set_viewport_size({"width": width, "height": 800})
        self.dialogs.clear()
        self.errors.clear()
        self.refused.clear()
        await self.page.goto(address)

    async def _dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        await dialog.dismiss()

    def _answered(self, response: Response) -> None:
        if not response.ok:
            self.refused.add(response.url)

    def _failed(self, error: Error) -> None:
        unopened = NOT_ESTABLISHED.search(str(error))
        if unopened and unopened[1] not in self.refused:
            return
        if not any(part in str(error) for part in NOT_THE_PAGES):
            self.errors.append(str(error))

    def _said(self, message: ConsoleMessage) -> None:
        # Chromium also tells of each answer that is no success, which a page may well expect.
        if message.type == "error" and (of_firefox(self.page) or "Content Security Policy" in message.text):
            self._failed(Error(message.text))


@asynccontextmanager
async def house(
    folder: Path, *, key: str = "", make_driver: Callable[[Path], Driver] = ground.memory_driver, **more: Any
) -> AsyncIterator[House]:
    """The service, on a port of its own. Each chat has its own terminal and browser ports, as on the other drivers."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        patch("cubicle.app.make_driver", lambda chosen, *_: make_driver(chosen.data_dir)),
    ):
        port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        chosen = settings.load(driver="memory", data_dir=folder, port=port, pool_size=0, mcp_api_key=key, **more)
        async with AsyncExitStack() as end:
            end.push_async_callback(empty, make_driver(folder))
            app = await end.enter_async_context(running(chosen))
            await end.enter_async_context(serve(app, listener))
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with httpx.AsyncClient(
                base_url=url, timeout=60, trust_env=False, verify=False, headers=headers
            ) as client:
                yield House(url, client)


@asynccontextmanager
async def visit(
    browser: Browser,
    address: str,
    *,
    width: int = 1200,
    scheme: Literal["light", "dark"] = "light",
    first: bool = False,
) -> AsyncIterator[Visit]:
    """`first`: somebody who has never been there; others had the panel of files open the last time."""
    context: BrowserContext = await browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    context.set_default_timeout(60_000)
    if not first:
        await context.add_init_script(
            """try { localStorage.getItem("cubicle.panes") ?? localStorage.setItem("cubicle.panes", '["files"]') } catch {}"""
        )
    visit = Visit(await context.new_page())
    visit.watch()
    try:
        await visit.page.goto(address)
        yield visit
    finally:
        await context.close()


def screens(wide: int = 1200, *, both: bool = False) -> list[Any]:
    """Parameters `scheme` and `width`: a phone with dark colours; `both`: and a desk with light ones.

    Most tests have the desk with light colours. Each colour with each width takes the long version.
    """
    usual = [("dark", 390), ("light", wide)][: 1 + both]
    each = [(scheme, width) for scheme in ("light", "dark") for width in (wide, 390)]
    return [*usual, *(pytest.param(*screen, marks=pytest.mark.long) for screen in each if screen not in usual)]


def widths(usual: int, *more: int) -> list[Any]:
    """Parameter `width`: one for every run, more for the long version."""
    return [usual, *(pytest.param(width, marks=pytest.mark.long) for width in more)]


def of_firefox(page: Page) -> bool:
    browser = page.context.browser
    return browser is not None and browser.browser_type.name == "firefox"


async def address(page: Page) -> str:
    """As the page has it: not every driver hears of what a page adds to its history."""
    return str(await page.evaluate("location.href"))


async def accessible(page: Page) -> None:
    """Of the page itself: what its frames hold has no axe in it, and axe would wait for their answers.

    It judges the document, which is the same in Firefox: there it is asked in the long version alone.
    """
    if of_firefox(page) and not LONG:
        return
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.axe_script)
    found = AxeResults(await page.evaluate("axe.run({ resultTypes: ['violations'], iframes: false })"))
    assert found.violations_count == 0, found.generate_report()
