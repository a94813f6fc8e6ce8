"""The browser of a sandbox: Chromium with DevTools on a port of its loopback, shared by the model and by people."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from cubicle.browser import cdp_http
from cubicle.browser.server_messages import TabRecord
from cubicle.core import sandbox_ports
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.fetch import Fetched, fetch
from cubicle.machine.machine import Machine
from cubicle.machine.websocket import WebSocketClient

PORT = sandbox_ports.BROWSER
MAX_ANSWER = 8 * 1024**2
MAX_MESSAGE = 64 * 1024**2
"""Largest DevTools message: a full-page screenshot comes in one."""

_START_LIMIT = 45.0


class NoBrowser(SandboxError):
    """No browser runs in the sandbox."""


class BrowserUnavailable(SandboxError):
    """The browser cannot run in this sandbox; the message says why."""


class Browsers:
    """Starts browsers, one start at a time for each machine."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[Machine, asyncio.Lock] = WeakKeyDictionary()

    async def start(self, machine: Machine) -> bool:
        """Have the browser running; True if this call started it. DevTools answers on return."""
        async with self._locks.setdefault(machine, asyncio.Lock()):
            if await is_running(machine):
                return False
            script = (
                "command -v cubicle-browser >/dev/null && command -v chromium >/dev/null || exit 127\ncubicle-browser"
            )
            ended, said = await machine.output(script, timeout=_START_LIMIT, limit=16 * 1024)
            if ended.status == 127:
                raise BrowserUnavailable("This sandbox's image has no browser. Use SANDBOX_IMAGE=standard or full.")
            if ended.status != 0 or not await is_running(machine):
                words = said.decode("utf-8", "replace").strip()[-400:]
                raise BrowserUnavailable(f"The browser could not be started. {words}")
            return True


async def ask(machine: Machine, method: str, target: str) -> Fetched:
    """One request to DevTools. NoBrowser when it does not answer."""
    try:
        return await fetch(machine, PORT, method, target, most=MAX_ANSWER)
    except MachineError as error:
        raise NoBrowser(f"No browser runs in this sandbox ({error.code}). POST …/start starts it.") from None


async def is_running(machine: Machine) -> bool:
    try:
        return (await ask(machine, "GET", "/json/version")).status == 200
    except NoBrowser:
        return False


async def pages(machine: Machine) -> list[TabRecord] | None:
    """The open pages; None when no browser runs."""
    try:
        return cdp_http.pages((await ask(machine, "GET", "/json/list")).body)
    except (NoBrowser, cdp_http.NotDevTools):
        return None


async def endpoint(machine: Machine) -> str:
    """The path of the browser's own DevTools socket."""
    body = (await ask(machine, "GET", "/json/version")).body
    path = cdp_http.version_path(body)
    if path is None:
        raise NoBrowser("What answers on the browser's port of this sandbox is no browser.")
    return path


async def connect(machine: Machine, path: str) -> WebSocketClient:
    """A DevTools socket. NoBrowser when it is refused."""
    try:
        return await WebSocketClient.open(machine, PORT, path, most=MAX_MESSAGE)
    except MachineError as error:
        raise NoBrowser(f"The browser of this sandbox does not take the connection ({error.code}).") from None
