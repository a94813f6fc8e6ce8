"""The service's own cookies: on HTTPS no other name of the domain can set one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http.cookies import SimpleCookie

import httpx
import pytest

from cubicle.app import running
from cubicle.core.cookies import cookie_name, cookie_path
from cubicle.drivers.factory import make_driver
from cubicle.settings import Settings
from tests.support.emptying import empty
from tests.support.service import serve

KEY = {"Authorization": "Bearer a-good-key"}
TLS = {"X-Forwarded-Proto": "https"}
"""As a reverse proxy on this machine says it."""


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    settings = Settings(  # type: ignore[call-arg]
        _env_file=None,
        driver="memory",
        data_dir=tmp_path_factory.mktemp("cookies"),
        pool_size=0,
        mcp_api_key="a-good-key",
    )
    async with running(settings) as app, serve(app) as url:
        yield url
    await empty(make_driver(settings))


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client:
        yield client


def only_cookie(answer: httpx.Response) -> tuple[str, str, str]:
    """Its name, its value, its path."""
    (line,) = answer.headers.get_list("Set-Cookie")
    ((name, cookie),) = SimpleCookie(line).items()
    assert cookie["httponly"]
    assert bool(cookie["secure"]) == name.startswith("__Host-")
    assert not cookie["domain"]
    return name, cookie.value, cookie["path"]


async def link_key(client: httpx.AsyncClient, chat: str) -> str:
    prompt = (await client.get("/system-prompt", params={"chat_id": chat}, headers=KEY)).text
    return prompt.split("?key=", 1)[1].split()[0].strip("`)")


async def test_a_sign_in_counts_only_under_the_name_that_no_other_host_can_set(client: httpx.AsyncClient) -> None:
    secure, value, path = only_cookie(await client.post("/login", data={"key": "a-good-key"}, headers=TLS))
    client.cookies.clear()
    plain, other, _ = only_cookie(await client.post("/login", data={"key": "a-good-key"}))
    client.cookies.clear()
    assert (secure, plain, path) == ("__Host-cubicle-login", "cubicle-login", "/")

    async def status(cookie: str, headers: dict[str, str]) -> int:
        return (await client.get("/api/sandboxes", headers={"Cookie": cookie} | headers)).status_code

    assert await status(f"{secure}={value}", TLS) == 200
    assert await status(f"{plain}={other}", {}) == 200
    assert await status(f"{plain}={value}", TLS) == 401
    assert await status(f"{plain}-x={value}; __host-cubicle-login={value}", TLS) == 401
    assert await status(f"{secure}={value}", {}) == 401


async def test_the_cookie_of_a_link_likewise(client: httpx.AsyncClient) -> None:
    key = await link_key(client, "one")
    name, value, path = only_cookie(await client.get("/files/one/", params={"key": key}, headers=TLS))
    client.cookies.clear()
    assert name.startswith("__Host-cubicle-")
    assert (value, path) == (key, "/")
    listed = {"secure": {"Cookie": f"{name}={value}"}, "plain": {"Cookie": f"{name.removeprefix('__Host-')}={value}"}}
    assert (await client.get("/files/one/", headers=listed["secure"] | TLS)).status_code != 401
    assert (await client.get("/files/one/", headers=listed["plain"])).status_code != 401
    assert (await client.get("/files/one/", headers=listed["plain"] | TLS)).status_code == 401


def test_services_under_several_prefixes_of_one_host_do_not_share_names() -> None:
    names = {cookie_name("cubicle-login", secure=True, root=root) for root in ("", "/one", "/two")}
    assert len(names) == 3
    assert all(name.startswith("__Host-cubicle-login") for name in names)
    assert cookie_name("a", secure=True, root="/one/") == cookie_name("a", secure=True, root="/one")
    assert cookie_path(secure=True, root="/one") == "/"
    assert cookie_path(secure=False, root="/one") == "/one/"
