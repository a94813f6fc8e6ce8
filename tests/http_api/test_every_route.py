"""Every address that the service has, called with every spelling of a way out: the table is the service's own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import httpx
import pytest
from starlette.routing import BaseRoute

from cubicle import settings
from cubicle.app import running
from cubicle.drivers.factory import make_driver
from cubicle.http_api.routes import ROWS
from tests.http_api.chat.test_traversal import CHATS, WAYS
from tests.support.emptying import empty
from tests.support.service import serve

_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")
_REFUSED = frozenset({400, 404})


@dataclass(frozen=True)
class Inside:
    """A form that is no way out of this address, and how it is answered then."""

    method: str
    route: str
    """All of those that begin so."""
    place: str
    forms: frozenset[bytes]
    answers: frozenset[int]
    why: str

    def covers(self, method: str, route: str, place: str, form: bytes) -> bool:
        return (self.method, self.place) == (method, place) and route.startswith(self.route) and form in self.forms


def _but(method: str, route: str, place: str, forms: Iterable[bytes], answers: set[int], why: str) -> Inside:
    return Inside(method, route, place, frozenset(forms), frozenset(answers), why)


_SEMICOLON = [b"..;/etc/passwd"]
_ONE_PAGE = [b"a%2f"]
EXCEPTIONS = [
    *(
        _but(
            method, "/api/uploads/{chat}/", "path", _SEMICOLON, answers, "`..;` is the name of a folder like any other"
        )
        for method, answers in (("POST", {201}), ("PUT", {201}), ("DELETE", {204, 404}))
    ),
    *(
        _but("GET", route, "path", _SEMICOLON, {200, 404}, "the upload of that name, if it is there just now")
        for route in ("/files/", "/raw/", "/preview/")
    ),
    _but(
        "GET", "/api/uploads/{chat}", "chat", [b"a%2fb"], {405}, "to routes it is an upload's address, which has no GET"
    ),
    *(
        _but(method, "/api/links/{chat}", "chat", [b"a%2fb"], {405}, "to routes it is a link's address, only revoked")
        for method in ("GET", "POST")
    ),
    _but("PUT", "/api/files/{chat}/", "path", WAYS, {*_REFUSED, 428}, "a name like any other, and no version is named"),
    _but("GET", "/raw/", "capability", WAYS, {400, 401, 404}, "it opens nothing, or what follows it is no path"),
    *(
        _but(method, f"/browser/{{chat}}/json/{verb}/{{page:token}}/", "page", _ONE_PAGE, {404}, "page `a/`: no name")
        for method in ("GET", "PUT")
        for verb in ("activate", "close")
    ),
    *(
        _but(method, f"/browser/{{chat}}/json/{verb}/", "page", _ONE_PAGE, {503}, "page `a`, of no browser")
        for method in ("GET", "PUT")
        for verb in ("activate", "close")
    ),
]


@dataclass(frozen=True)
class Attempt:
    method: str
    route: str
    place: str
    form: bytes
    address: bytes

    @property
    def answers(self) -> frozenset[int]:
        covering = [e.answers for e in EXCEPTIONS if e.covers(self.method, self.route, self.place, self.form)]
        return covering[0] if covering else _REFUSED


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, list[Attempt]]]:
    """The whole service, as `cubicle serve` puts it together, and a chat whose sandbox is up."""
    chosen = settings.load(driver="memory", data_dir=tmp_path_factory.mktemp("data"), pool_size=0)
    async with running(chosen) as app, serve(app) as url:
        async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client:
            made = await client.post("/api/uploads/walk/inside.txt", content=b"inside")
            granted = await client.post("/api/chats/walk/raw/uploads/inside.txt?all=1")
        assert (made.status_code, granted.status_code) == (201, 200)
        yield url, attempts(app.routes, granted.json()["url"].split("/")[1].encode())
    await empty(make_driver(chosen))


def attempts(routes: list[BaseRoute], capability: bytes) -> list[Attempt]:
    """Each place of each address in turn takes each form; the others hold what leads somewhere."""
    ordinary = {"chat": b"walk", "capability": capability}
    found = []
    for route in routes:
        path = str(getattr(route, "path", ""))
        methods = sorted((getattr(route, "methods", None) or {"GET"}) - {"HEAD"})
        path = path if path != "/static" else "/static/{path}"
        for place in _PLACE.findall(path):
            for form in CHATS if place == "chat" else WAYS:
                filled = ordinary | {place: form}
                address = _PLACE.sub(lambda m: filled.get(m[1], b"x").decode("latin-1"), path)  # noqa: B023
                found += [Attempt(method, path, place, form, address.encode("latin-1")) for method in methods]
    return found


@pytest.mark.timeout(300)
async def test_no_address_leads_out_or_breaks(site: tuple[str, list[Attempt]]) -> None:
    url, tried = site
    host, _, port = url.removeprefix("http://").rpartition(":")
    assert len(tried) > 1000
    gate = asyncio.Semaphore(16)

    async def one(attempt: Attempt) -> str | None:
        status = 429  # a chat may ask for so much at once
        async with gate, asyncio.timeout(60):
            while status == 429:
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(
                    b"%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                    % (attempt.method.encode(), attempt.address)
                )
                answer = await reader.read(200_000)
                writer.close()
                status = int(answer.split(b" ", 2)[1])
                await asyncio.sleep(0.05 if status == 429 else 0)
        bad = status not in attempt.answers
        bad |= any(mark in answer for mark in (b"root:x:", b"Traceback", b"\r\nX-Evil"))
        return f"{attempt.method} {attempt.route} {attempt.form[:80]!r}: {status}" if bad else None

    wrong = [problem for problem in await asyncio.gather(*(one(attempt) for attempt in tried)) if problem]
    assert wrong == []


async def test_every_exception_is_of_an_address_that_there_is(site: tuple[str, list[Attempt]]) -> None:
    """Otherwise it would stay, and hide the next one."""
    for exception in EXCEPTIONS:
        assert any(exception.covers(a.method, a.route, a.place, a.form) for a in site[1]), exception.why


async def test_head_ends_at_every_address_and_calls_nothing_empty(site: tuple[str, list[Attempt]]) -> None:
    """Also where GET goes on for ever: the client sends its next request on the same connection."""
    url, _ = site
    host, _, port = url.removeprefix("http://").rpartition(":")
    kept: dict[str, str] = {"chat": "walk", "path": "uploads/inside.txt"}

    async def one(path: str) -> str | None:
        address = _PLACE.sub(lambda found: kept.get(found[1], "1"), path)
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(30):
                for asked in (f"HEAD {address}", "GET /health"):
                    writer.write(f"{asked} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                answers = await reader.readuntil(b'{"status":"healthy"}')
        except TimeoutError:
            return path
        finally:
            writer.close()
        head = answers.partition(b"\r\n\r\n")[0]
        return path if b" 200 " in head and b"content-length: 0" in head else None

    asked = [path for row in ROWS if "GET" in row.methods.split() for path in row.paths]
    assert len(asked) > 50
    assert [path for path in await asyncio.gather(*map(one, asked)) if path] == []
