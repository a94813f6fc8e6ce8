"""Wrong keys at every entrance of the whole service: counted together, refused with 429, and nobody else's trouble."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from cubicle.app import running
from cubicle.drivers.factory import make_driver
from cubicle.settings import BadSettings, Settings, load
from tests.support.emptying import empty
from tests.support.service import ACCEPT, serve

TRIES = 6
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
MINE, OTHER = "203.0.113.5", "203.0.113.6"


def shown(key: str, address: str = MINE) -> dict[str, str]:
    """The test is the reverse proxy of the service: it comes from the loopback."""
    return {"Authorization": f"Bearer {key}", "X-Forwarded-For": address, "Accept": ACCEPT}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    given = {"driver": "memory", "data_dir": tmp_path, "pool_size": 0, "mcp_api_key": "a-good-key"}
    settings = Settings(_env_file=None, wrong_keys_per_minute=TRIES, **given)  # type: ignore[arg-type, call-arg]
    async with (
        running(settings) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield client
    await empty(make_driver(settings))


async def use_up(client: httpx.AsyncClient, address: str = MINE) -> None:
    """Wrong keys at all three entrances."""
    for number in range(TRIES // 3):
        headers = shown(f"wrong-key-{number}", address)
        assert (await client.post("/mcp", json=PING, headers=headers)).status_code == 401
        assert (await client.get("/api/sandboxes", headers=headers)).status_code == 401
        page = await client.post("/login", data={"key": f"wrong-{number}"}, headers={"X-Forwarded-For": address})
        assert page.status_code == 401


async def test_after_too_many_wrong_keys_every_entrance_says_when_to_come_back(client: httpx.AsyncClient) -> None:
    await use_up(client)
    for key in ("one-more-wrong-key", "a-good-key"):
        answers = [
            await client.post("/mcp", json=PING, headers=shown(key)),
            await client.get("/api/sandboxes", headers=shown(key)),
            await client.post("/login", data={"key": key}, headers={"X-Forwarded-For": MINE}),
        ]
        for answer in answers:
            assert answer.status_code == 429
            assert 0 < int(answer.headers["retry-after"]) <= 60
        assert "Too many wrong keys" in answers[0].json()["error"]["message"]
        assert answers[1].headers["content-type"] == "application/problem+json"
        assert "Too many wrong keys" in answers[1].json()["detail"]
        assert "Too many wrong keys" in answers[2].text


async def test_a_right_key_from_another_address_works_on(client: httpx.AsyncClient) -> None:
    await use_up(client)
    assert (await client.post("/mcp", json=PING, headers=shown("a-good-key", OTHER))).status_code == 200
    answer = await client.post("/login", data={"key": "a-good-key"}, headers={"X-Forwarded-For": OTHER})
    assert answer.status_code == 303


async def test_a_client_that_worked_before_and_one_that_has_signed_in_work_on(client: httpx.AsyncClient) -> None:
    assert (await client.post("/mcp", json=PING, headers=shown("a-good-key"))).status_code == 200
    prompt = (await client.get("/system-prompt", params={"chat_id": "one"}, headers=shown("a-good-key"))).text
    link = prompt.split("?key=", 1)[1].split()[0].strip("`)")
    await client.post("/login", data={"key": "a-good-key"}, headers={"X-Forwarded-For": MINE})
    person = dict(client.cookies)
    client.cookies.clear()
    await use_up(client)
    assert (await client.post("/mcp", json=PING, headers=shown("a-good-key"))).status_code == 200
    cookies = "; ".join(f"{name}={value}" for name, value in person.items())
    away = {"X-Forwarded-For": MINE, "Cookie": cookies}
    assert (await client.get("/api/sandboxes", headers=away)).status_code == 200
    by_link = await client.get("/terminal/one/status", params={"key": link}, headers=shown("wrong-key"))
    assert by_link.status_code == 200


async def test_no_key_stays_a_401_and_open_addresses_stay_open(client: httpx.AsyncClient) -> None:
    await use_up(client)
    here = {"X-Forwarded-For": MINE}
    assert (await client.get("/api/sandboxes", headers=here)).status_code == 401
    assert (await client.get("/health", headers=shown("wrong-key"))).status_code == 200
    assert (await client.get("/login", headers=here)).status_code == 200


async def test_one_network_of_ipv6_is_one_address(client: httpx.AsyncClient) -> None:
    for number in range(TRIES):
        headers = shown(f"wrong-key-{number}", f"2001:db8::{number + 1:x}")
        assert (await client.get("/api/sandboxes", headers=headers)).status_code == 401
    blocked = await client.get("/api/sandboxes", headers=shown("wrong-key", "2001:db8::ffff:1"))
    assert blocked.status_code == 429
    free = await client.get("/api/sandboxes", headers=shown("a-good-key", "2001:db8:0:1::1"))
    assert free.status_code == 200


@pytest.mark.parametrize("value", ["10.0.0.0/8,nonsense", "proxy.example", "10.0.0.1/8", "*,10.0.0.1"])
def test_a_trusted_proxy_is_an_address_or_a_network(value: str) -> None:
    with pytest.raises(BadSettings, match="FORWARDED_ALLOW_IPS"):
        load(forwarded_allow_ips=value)


def test_trusted_proxies_are_read() -> None:
    assert load(forwarded_allow_ips=" 10.0.0.0/8, 2001:db8::1").forwarded_allow_ips == ("10.0.0.0/8", "2001:db8::1")
    assert load(forwarded_allow_ips="*").forwarded_allow_ips == ("*",)
