"""Every address that the service has, called with every spelling of a way out: the table is the service's own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import unquote_to_bytes

import pytest
from starlette.routing import BaseRoute

from cubicle import settings
from cubicle.app import running
from cubicle.drivers.choice import make_driver
from tests.emptying import empty
from tests.http_api.chat.test_traversal import CHATS, WAYS
from tests.service import serve

_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")
_ORDINARY = {"chat": b"walk", "capability": b"1.a.b.c"}
"""What stands in the places of an address that are not tried just now."""


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, list[BaseRoute]]]:
    """The whole service, as `cubicle serve` puts it together."""
    chosen = settings.load(driver="memory", data_dir=tmp_path_factory.mktemp("data"), pool_size=0)
    async with running(chosen) as app, serve(app) as url:
        yield url, app.routes
    await empty(make_driver(chosen))


def _answers(address: bytes) -> set[int]:
    """How an address may be answered. Only one that leads nowhere may succeed: it is the name of a file, if an odd one."""
    # A redirect adds the last slash; 503 is a sandbox or a browser that cannot be had just now.
    allowed = {400, 401, 404, 405, 409, 307, 308, 503}
    parts = unquote_to_bytes(address).split(b"/")
    if not {b".", b"..", b""} & set(parts[1:-1]) and parts[-1] not in (b".", b"..") and b"\0" not in b"".join(parts):
        allowed |= {200, 201, 204}  # 204 where an upload, tried at the same time, came first
    return allowed


def attempts(routes: list[BaseRoute]) -> list[tuple[bytes, bytes]]:
    """(method, address): each place of each address in turn takes each spelling."""
    found = []
    for route in routes:
        path = str(getattr(route, "path", ""))
        methods = sorted((getattr(route, "methods", None) or {"GET"}) - {"HEAD"})
        path = path if path != "/static" else "/static/{path}"
        for place in _PLACE.findall(path):
            for way in CHATS if place == "chat" else WAYS:
                address = _PLACE.sub(
                    lambda m, place=place, way=way: (way if m[1] == place else _ORDINARY.get(m[1], b"x")).decode(
                        "latin-1"
                    ),
                    path,
                ).encode("latin-1")
                found += [(method.encode(), address) for method in methods]
    return found


@pytest.mark.timeout(300)
async def test_no_address_leads_out_or_breaks(site: tuple[str, list[BaseRoute]]) -> None:
    url, routes = site
    host, _, port = url.removeprefix("http://").rpartition(":")
    tried = attempts(routes)
    assert len(tried) > 1000
    gate = asyncio.Semaphore(16)

    async def one(method: bytes, address: bytes) -> str | None:
        async with gate:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                % (method, address)
            )
            async with asyncio.timeout(60):
                answer = await reader.read(200_000)
            writer.close()
        status = int(answer.split(b" ", 2)[1])
        bad = status not in _answers(address)
        bad |= any(mark in answer for mark in (b"root:x:", b"Traceback", b"\r\nX-Evil"))
        return f"{method.decode()} {address[:80]!r}: {status}" if bad else None

    wrong = [problem for problem in await asyncio.gather(*(one(*attempt) for attempt in tried)) if problem]
    assert wrong == []
