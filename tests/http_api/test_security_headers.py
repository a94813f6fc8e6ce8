"""Every address of the service, whoever asks: who may frame the answer, who may load it, and no guessing of its type."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.routing import BaseRoute

from cubicle import settings
from cubicle.app import running
from cubicle.drivers.factory import make_driver
from tests.support.emptying import empty
from tests.support.service import serve

KEY = "key-of-the-tests"
EMBEDDER = "https://chat.example.org"
_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")
_CORP = {"same-origin", "same-site", "cross-origin"}


@pytest.fixture(scope="module", params=[KEY, ""], ids=["with a key", "open"])
async def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[httpx.AsyncClient, list[BaseRoute]]]:
    chosen = settings.load(
        driver="memory",
        data_dir=tmp_path_factory.mktemp("data"),
        pool_size=0,
        mcp_api_key=request.param,
        embedders=EMBEDDER,
    )
    headers = {"Authorization": f"Bearer {KEY}"} if request.param else {}
    async with (
        running(chosen) as app,
        serve(app) as url,
        httpx.AsyncClient(
            base_url=url, timeout=120, trust_env=False, headers=headers, follow_redirects=False
        ) as client,
    ):
        for name in ("x", "plot.png", "page.html"):
            made = await client.post(f"/api/uploads/walk/{name}", content=b"inside")
            assert made.status_code == 201
        yield client, app.routes
    await empty(make_driver(chosen))


def asked(routes: list[BaseRoute]) -> list[tuple[str, str]]:
    filled = {"chat": "walk", "path": "x"}
    found = [("GET", "/static/icon.svg"), ("GET", "/static/none"), ("GET", "/none"), ("GET", "/files/walk/")]
    found += [("GET", "/files/walk/uploads/page.html"), ("GET", "/files/walk/plot.png?download=1")]
    for route in routes:
        path = str(getattr(route, "path", ""))
        address = _PLACE.sub(lambda m: filled.get(m[1], "x"), path)
        methods = set(getattr(route, "methods", None) or {"GET"})
        found += [(method, address) for method in sorted(methods | {"OPTIONS", "PATCH"})]
    return found


def wrong(headers: httpx.Headers) -> list[str]:
    policies = headers.get_list("content-security-policy")
    problems = [] if headers.get_list("x-content-type-options") == ["nosniff"] else ["nosniff"]
    if len(policies) != 1 or f"frame-ancestors 'self' {EMBEDDER}" not in policies[0]:
        problems.append("frame-ancestors")
    if len(found := headers.get_list("cross-origin-resource-policy")) != 1 or found[0] not in _CORP:
        problems.append("CORP")
    return problems


async def test_every_answer_of_every_route_carries_them(site: tuple[httpx.AsyncClient, list[BaseRoute]]) -> None:
    client, routes = site
    table = asked(routes)
    assert len(table) > 150
    bad, seen = [], set()
    async with httpx.AsyncClient(base_url=client.base_url, timeout=120, trust_env=False, verify=False) as stranger:
        for who in (stranger, client) if "Authorization" in client.headers else (client,):
            for method, address in table:
                async with who.stream(method, address) as answer:  # some never end
                    seen.add(answer.status_code)
                    bad += [f"{method} {address}: {answer.status_code} lacks {p}" for p in wrong(answer.headers)]
        assert wrong((await client.get("/files/walk/x", headers={"Host": "evil.example"})).headers) == []
        foreign = await client.post("/api/uploads/walk/y", headers={"Origin": "https://evil.example"})
        assert (foreign.status_code, wrong(foreign.headers)) == (403, [])
    assert bad == []
    assert {200, 404, 405} <= seen


async def test_who_may_load_a_file_goes_by_the_credential(site: tuple[httpx.AsyncClient, list[BaseRoute]]) -> None:
    client, _ = site
    assert (await client.post("/api/uploads/walk/plot.png", content=b"again")).status_code == 201
    plain = await client.get("/files/walk/uploads/plot.png")
    if "Authorization" not in client.headers:
        assert plain.headers["cross-origin-resource-policy"] == "same-site"
        return
    assert plain.headers["cross-origin-resource-policy"] == "same-origin"
    entries = (await client.get("/files/walk/")).json()["entries"]
    link = next(entry["url"] for entry in entries if entry["name"] == "plot.png")
    query = link.partition("?")[2]
    async with httpx.AsyncClient(base_url=client.base_url, trust_env=False, verify=False) as anybody:
        by_link = await anybody.get(f"/files/walk/uploads/plot.png?{query}")
        assert (by_link.status_code, by_link.headers["cross-origin-resource-policy"]) == (200, "cross-origin")
        by_cookie = await anybody.get("/files/walk/uploads/plot.png")
        assert (by_cookie.status_code, by_cookie.headers["cross-origin-resource-policy"]) == (200, "same-origin")
