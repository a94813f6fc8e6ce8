"""A Firefox that tests drive: the distribution's own."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.async_api import Browser, async_playwright
from starlette.types import ASGIApp, Message, Receive, Scope, Send

RELAY = Path(__file__).with_name("bidi_relay.py")
PREFERENCES: dict[str, str | float | bool] = {
    "browser.download.folderList": 2,  # into the folder that is named
    "dom.events.testing.asyncClipboard": True,  # to read the clipboard asks nobody
    "fission.webContentIsolationStrategy": 0,  # of ESR: clicks reach only the frames in the process of the page
    "dom.ipc.processCount": 1,  # so one is enough, and none is begun for each tab
    "dom.ipc.processPrelaunch.enabled": False,
}


def firefox_program() -> str | None:
    return shutil.which("firefox-esr") or shutil.which("firefox")


@asynccontextmanager
async def firefox(downloads: Path) -> AsyncIterator[Browser]:
    """`downloads`: the folder in which it puts what a person downloads."""
    program = firefox_program()
    assert program
    with TemporaryDirectory(prefix="firefox-") as folder:
        start = Path(folder) / "firefox"
        command = shlex.join([sys.executable, str(RELAY), program])
        start.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        start.chmod(0o755)
        async with async_playwright() as playwright:
            browser = await playwright.firefox.launch(
                channel="moz-firefox",
                executable_path=start,
                firefox_user_prefs={**PREFERENCES, "browser.download.dir": str(downloads)},
            )
            try:
                yield browser
            finally:
                await browser.close()


class EvalAllowed:
    """A service whose pages may call eval: Playwright's own scripts do, and in Firefox the page's policy binds them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [_header(*header) for header in message.get("headers", ())]}
            await send(message)

        await self._app(scope, receive, answer)


def _header(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    return (name, with_eval(value.decode()).encode()) if name.lower() == b"content-security-policy" else (name, value)


def with_eval(policy: str) -> str:
    """The policy as it is, but for eval."""
    directives = dict(part.strip().partition(" ")[::2] for part in policy.split(";") if part.strip())
    sources = directives.get("script-src", directives.get("default-src"))
    if sources is None:
        return policy
    directives["script-src"] = f"{sources} 'unsafe-eval'".replace("'none' ", "")
    return "; ".join(f"{name} {value}".strip() for name, value in directives.items())
