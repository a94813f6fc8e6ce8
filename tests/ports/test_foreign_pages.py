"""Pages that are not the chat's own: what they may neither ask for, nor show in a frame, nor spoil for their visitor."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cubicle.core.chat import Chat
from tests.ports.conftest import CHAT, Ground, ground_of

NEIGHBOUR = Chat("other-room", CHAT.tenant)
FOREIGN = ["null", "https://evil.example", "http://localhost", "http://127.0.0.1", ""]
EMBEDDER = "https://chat.example.org"
LED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}


@pytest.fixture(scope="module", params=["none", "with keys"])
async def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """A service without an API key, and one with."""
    options = {"KEYS": "none"} if request.param == "none" else {}
    folder = tmp_path_factory.mktemp("foreign")
    async with ground_of(folder, "memory", POOL_SIZE="0", EMBEDDERS=EMBEDDER, **options) as running:
        yield running


@pytest.fixture(scope="module")
def chat(site: Ground) -> Chat:
    return CHAT if site.keys else Chat(CHAT.id)


@pytest.fixture(scope="module")
async def port(site: Ground, chat: Chat) -> int:
    return await site.start(chat)


async def test_a_foreign_origin_is_refused_whatever_the_method(site: Ground, chat: Chat, port: int) -> None:
    neighbour = f"http://{site.host(NEIGHBOUR, port)}"
    handshake = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    handshake["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    async with site.client(chat, port) as client:
        for origin in (*FOREIGN, neighbour):
            for method in ("GET", "HEAD", "OPTIONS", "POST", "DELETE"):
                answer = await client.request(method, "/", headers={"Origin": origin})
                assert answer.status_code == 403, (origin, method)
            assert (await client.get("/", headers=handshake | {"Origin": origin})).status_code == 403
        for number in (port, port + 1):
            own = {"Origin": f"http://{site.host(chat, number)}"}
            assert (await client.get("/", headers=own)).status_code == 200
            assert (await client.post("/", headers=own)).status_code == 200
        assert (await client.get("/")).status_code == 200  # a program, which has no Origin


def ancestors(policies: list[str]) -> list[str]:
    """The sources of the one policy that names them."""
    (policy,) = [policy for policy in policies if policy.startswith("frame-ancestors")]
    return policy.split()[1:]


async def test_a_page_of_the_chat_may_ask_before_it_calls_another_port(site: Ground, chat: Chat, port: int) -> None:
    """Browsers send no cookie with the question."""
    asked = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type"}
    sibling, neighbour = (f"http://{site.host(each, port + 1)}" for each in (chat, NEIGHBOUR))
    async with site.client(chat, port, by="nothing", **asked) as client:
        answer = await client.options("/echo", headers={"Origin": sibling})
        if site.keys:
            assert (answer.status_code, answer.content) == (204, b"")
            told = {name: answer.headers[f"access-control-allow-{name}"] for name in ("origin", "methods", "headers")}
            assert told == {"origin": sibling, "methods": "PUT", "headers": "content-type"}
            assert answer.headers["access-control-allow-credentials"] == "true"
        else:
            assert answer.json()["method"] == "OPTIONS"  # the program itself is asked
        for others in ({"Origin": neighbour}, {"Origin": "null"}):
            refused = await client.options("/echo", headers=others)
            assert refused.status_code == (401 if site.keys else 403)
            assert "access-control-allow-origin" not in refused.headers
        assert (await client.put("/echo", headers={"Origin": sibling})).status_code == (401 if site.keys else 200)


async def test_who_may_show_a_port_in_a_frame(site: Ground, chat: Chat, port: int) -> None:
    own = ["'self'", f"http://127.0.0.1:{site.port}", f"http://localhost:{site.port}", EMBEDDER]
    sibling = f"http://{site.host(chat, port + 1)}"
    leads = {
        None: own,
        "https://evil.example/": own,
        f"http://{site.host(NEIGHBOUR, port)}/": own,
        f"{sibling}.evil.example/": own,
        f"{sibling}/page?x=1": [*own, sibling],
    }
    async with site.client(chat, port) as client:
        for referer, expected in leads.items():
            sent = LED | ({"Referer": referer} if referer else {})
            answer = await client.get("/", headers=sent)
            assert answer.status_code == 200
            assert ancestors(answer.headers.get_list("Content-Security-Policy")) == expected
        lines = '["Content-Security-Policy: default-src %27self%27"]'
        policies = (await client.get(f"/headers?lines={lines}")).headers.get_list("Content-Security-Policy")
        assert policies[0] == "default-src 'self'"
        assert ancestors(policies) == own
    async with site.client(chat, 1) as client:  # a page of the service's own
        answer = await client.get("/", headers=LED)
        assert ancestors(answer.headers.get_list("Content-Security-Policy")) == own


async def test_wrong_keys_at_a_port_lock_nobody_out_of_the_service(site: Ground, chat: Chat, port: int) -> None:
    if not site.keys:
        return
    async with site.client(chat, port, by="nothing") as client:
        client.headers["X-Forwarded-For"] = "203.0.113.77"
        for number in range(40):
            answer = await client.get("/", headers={"Authorization": f"Bearer guess-{number:04}"})
        assert answer.status_code == 429
    new = {"X-Forwarded-For": "203.0.113.77", **site.key(chat)}
    assert (await site.service.client.get("/api/sandboxes", headers=new)).status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_foreign_page_that_has_a_link_does_not_get_the_visitors_cookies(
    site: Ground, chat: Chat, port: int, method: str
) -> None:
    """A public link is known to many, and the program may have signed the visitor in by a cookie of its own."""
    link = f"cubicle-key={site.token(chat, port)}"
    foreign = {"Origin": f"http://{site.host(NEIGHBOUR, port)}", "Sec-Fetch-Site": "same-site"}
    own = {"Origin": f"http://{site.host(chat, port + 1)}", "Sec-Fetch-Site": "same-site"}
    path = '/headers?lines=["Set-Cookie: signed=in"]&' + link
    async with site.client(chat, port, by="nothing", Cookie="session=theirs") as client:
        for sent, shown in ((foreign, False), (own, True), ({}, True)):
            seen = await client.request(method, f"/echo?{link}", headers=sent)
            assert seen.status_code == (200 if shown or site.keys else 403)
            assert ("session=theirs" in seen.text) == shown
            assert ("Set-Cookie" in (await client.request(method, path, headers=sent)).headers) == shown
