"""What the tests of the live terminal and browser stand on: the routes, served over TCP, with true sandboxes behind."""

from __future__ import annotations

import platform
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from cubicle import settings
from cubicle.browser.live_views import LiveViews
from cubicle.core.chat import Chat
from cubicle.core.identity import Credential, Identity, LinkAccess
from cubicle.drivers.memory import MemoryDriver
from cubicle.drivers.oci.driver import OciDriver
from cubicle.http_api import errors
from cubicle.http_api.browser import BrowserRoutes
from cubicle.http_api.credential import note_credential
from cubicle.http_api.live_view import LiveRoutes
from cubicle.http_api.origin_check import OriginCheck
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.terminal import TerminalRoutes
from cubicle.http_api.websocket_proxy import ProxyLimits
from cubicle.images.store import SUBUID_START, ImageStore
from cubicle.machine.machine import Machine
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.fleet import Fleet
from tests.conftest import absent
from tests.support.service import serve

ROOT = Path(__file__).parents[2]
IMAGES = settings.load().image_dir / "bases"


VIEWER = {"X-Viewer": "1"}


class Tenant:
    """The gate before the routes, as short as it can be: everybody belongs to one tenant. Whoever sends VIEWER came by
    a link that only lets one look."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        state["tenant"] = "main"
        note_credential(state, Credential.NONE_NEEDED)
        if any(name == b"x-viewer" for name, _ in scope.get("headers", ())):
            state["identity"] = Identity("main", access=LinkAccess.VIEW)
        await self._app(scope, receive, send)


@dataclass
class Service:
    """A running service and what is behind it."""

    fleet: Fleet
    base: str
    screens: LiveViews

    @property
    def ws(self) -> str:
        return self.base.replace("http", "ws", 1)

    @asynccontextmanager
    async def machine(self, chat: str) -> AsyncIterator[Machine]:
        """The chat's sandbox, with the programs in it that the image would bring."""
        async with self.fleet.lease(Chat(chat)) as machine:
            await provide(machine)
            yield machine


def application(
    fleet: Fleet, screens: LiveViews, limits: ProxyLimits | None = None, public_base_url: str = ""
) -> Starlette:
    routes = RouteTable().bind(
        terminal=TerminalRoutes(fleet, limits),
        live_view=LiveRoutes(fleet, screens),
        browser=BrowserRoutes(fleet, public_base_url, limits, screens=screens),
    )
    guards = [Middleware(OriginCheck, known=[public_base_url]), Middleware(Tenant)]
    return Starlette(routes=routes, middleware=guards, exception_handlers=dict(errors.HANDLERS))


@asynccontextmanager
async def serving(
    driver: Driver, folder: Path, *, limits: ProxyLimits | None = None, **options: Any
) -> AsyncIterator[Service]:
    """The service on a free port of the loopback; its sandboxes are deleted at the end."""
    async with Fleet(driver, ChatIndex(folder / "ledger"), pool_size=0) as fleet, LiveViews() as screens:
        try:
            async with serve(application(fleet, screens, limits), **options) as url:
                yield Service(fleet, url, screens)
        finally:
            for seen in fleet.overview():
                if seen.chat is not None:
                    await fleet.remove(seen.chat)


def memory_driver(folder: Path) -> Driver:
    return MemoryDriver(folder, own_network=True)


def oci_driver(folder: Path) -> Driver:
    """Sandboxes on the newest image that has a browser."""
    return OciDriver(folder / "data", ImageStore(settings.load().image_dir), browser_image(), SUBUID_START)


def browser_image() -> str:
    for base in ImageStore(settings.load().image_dir).built():
        if (base.rootfs / "usr/bin/chromium").exists() and (base.rootfs / "usr/bin/ttyd").exists():
            return base.digest
    absent("needs a sandbox image with a browser: cubicle image build standard")
    raise AssertionError


DRIVERS = {"memory": memory_driver, "oci": oci_driver}


def ttyd_command() -> str | None:
    """How to start the ttyd of the sandbox image on this host: as installed, or out of a built image."""
    if shutil.which("ttyd"):
        return f"exec {shutil.which('ttyd')}"
    triple = f"{platform.machine()}-linux-gnu"
    for root in sorted(IMAGES.glob("*/rootfs")):
        loaders = sorted((root / "usr/lib").glob("ld-linux-*")) + sorted((root / "usr/lib64").glob("ld-linux-*"))
        if loaders and (root / "usr/bin/ttyd").exists():
            libraries = root / "usr/lib" / triple
            # The plug-in is looked for in this folder alone, so that nothing else of the image reaches tmux.
            plugin = f"mkdir -p ~/.local/lib && ln -sf {libraries}/libwebsockets-evlib_uv.so ~/.local/lib/"
            program = f"{loaders[0]} --library-path {libraries} {root}/usr/bin/ttyd"
            return f"{plugin}\nLD_LIBRARY_PATH=~/.local/lib exec {program}"
    return None


def browser_program() -> Path | None:
    """The program of the sandbox image that starts the browser."""
    path = ROOT / "image/root/usr/local/bin/cubicle-browser"
    return path if shutil.which("chromium") else None


async def provide(machine: Machine) -> None:
    """Where the sandbox is no image of ours, put the image's programs in place."""
    ended, _ = await machine.output("command -v ttyd && command -v cubicle-browser", timeout=60)
    if ended.status == 0:
        return
    command, browser = ttyd_command(), browser_program()
    if command:
        script = f'#!/bin/sh\n{command} "$@"\n'.encode()
        await machine.write("/home/assistant/.local/bin/ttyd", script, mode=0o755)
    if browser:
        await machine.write("/home/assistant/.local/bin/cubicle-browser", browser.read_bytes(), mode=0o755)
