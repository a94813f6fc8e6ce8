"""People who sign in to the pages by the issuer, and those who would sign somebody in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.oauth.issuer_server import issuer_server, rsa_key
from tests.oauth.test_service import BASE, CUSTOMER, Site, site_of

CLIENT = "cubicle-pages"
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with (
        issuer_server() as server,
        site_of(tmp_path_factory.mktemp("site"), server, oauth_client_id=CLIENT, oauth_role_claim="roles") as site,
    ):
        yield site


@pytest.fixture(autouse=True)
def no_cookies(site: Site) -> None:
    site.client.cookies.clear()
    site.issuer.metadata, site.issuer.id_token = {}, ""
    site.issuer.exchanged.clear()


async def begin(site: Site, target: str = "/admin") -> dict[str, str]:
    """What the browser is sent to the issuer with."""
    answer = await site.client.get("/login/oauth", params={"next": target})
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"].startswith(f"{site.issuer.url}/auth?")
    return {name: value[0] for name, value in parse_qs(urlsplit(answer.headers["location"]).query).items()}


async def finish(
    site: Site, asked: dict[str, str], answer: dict[str, str] | None = None, **claims: Any
) -> httpx.Response:
    key = claims.pop("key", None)
    claims = {"aud": CLIENT, "nonce": asked["nonce"], "sub": "alice", "email": "alice@example.com"} | claims
    site.issuer.id_token = site.issuer.token({"typ": "JWT"}, key, **claims)
    return await site.client.get("/login/callback", params=answer or {"code": "the-code", "state": asked["state"]})


async def who(site: Site) -> int:
    """Whether the browser is signed in now."""
    return (await site.client.get("/api/sandboxes")).status_code


async def test_a_person_signs_in_and_out(site: Site) -> None:
    asked = await begin(site, "/preview/user:alice/?a=1")
    assert asked["redirect_uri"] == f"{BASE}/login/callback"
    assert (asked["response_type"], asked["client_id"], asked["code_challenge_method"]) == ("code", CLIENT, "S256")
    answer = await finish(site, asked)
    assert (answer.status_code, answer.headers["location"]) == (303, "../preview/user:alice/?a=1")
    cookie = next(text for text in answer.headers.get_list("set-cookie") if text.startswith("cubicle-login="))
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "domain" not in cookie.lower()  # noqa: PT018
    exchanged = site.issuer.exchanged[0]
    digest = hashlib.sha256(exchanged["code_verifier"].encode()).digest()
    assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == asked["code_challenge"]
    assert exchanged["code"] == "the-code"
    assert await who(site) == 200
    prompt = (await site.client.get("/system-prompt")).text
    assert "user:alice" in prompt
    assert (await site.client.get("/files/user:alice")).status_code == 200
    assert (await site.client.get("/files/user:bob")).status_code == 401
    assert (await site.client.get("/health/disk")).status_code == 401
    out = await site.client.post("/logout")
    assert (out.status_code, out.headers["location"]) == (303, "./login")
    assert await who(site) == 401


async def test_the_sign_in_page_names_the_issuer(site: Site) -> None:
    page = (await site.client.get("/login", headers=HTML)).text
    assert site.issuer.url.removeprefix("http://") in page


async def test_who_signs_out_is_led_on_to_the_issuer(tmp_path: Path) -> None:
    async with issuer_server() as server:
        server.metadata = {"end_session_endpoint": f'{server.url}/out?x="><script>'}
        async with site_of(tmp_path, server, oauth_client_id=CLIENT) as site:
            await finish(site, await begin(site))
            out = await site.client.post("/logout")
            assert (out.status_code, "<script>" in out.text) == (200, False)
            assert f"{server.url}/out?x=" in out.text
            assert await who(site) == 401


async def test_a_key_still_signs_in_and_out(site: Site) -> None:
    assert (await site.client.post("/login", data={"key": CUSTOMER})).status_code == 303
    assert await who(site) == 200
    await site.client.post("/logout")
    assert await who(site) == 401


async def test_an_operator_is_one_by_the_role(site: Site) -> None:
    assert (await finish(site, await begin(site), roles=["operator"])).status_code == 303
    assert (await site.client.get("/health/disk")).status_code == 200


@pytest.mark.parametrize(
    "target",
    ["https://evil.example", "//evil.example", "/\\evil.example", "\\\\evil.example", "/a\r\nX: y", "javascript:alert(1)", "x" * 5000],
)  # fmt: skip
async def test_nobody_is_led_to_another_site(site: Site, target: str) -> None:
    answer = await finish(site, await begin(site, target))
    assert (answer.status_code, answer.headers["location"]) == (303, "../")


async def test_the_callback_works_only_in_the_browser_that_began(site: Site) -> None:
    """Login CSRF: whoever follows a link with somebody else's code is not signed in as somebody else."""
    asked = await begin(site)
    site.client.cookies.clear()
    assert (await finish(site, asked)).status_code == 401
    assert (await who(site), site.issuer.exchanged) == (401, [])
    mine = await begin(site)
    assert (await finish(site, asked)).status_code == 401, "the state of another browser"
    assert (await finish(site, mine)).status_code == 401, "a failed try ends the sign-in"
    assert (await who(site), site.issuer.exchanged) == (401, [])


@pytest.mark.parametrize("cookie", ["", "x", "9999999999.YQ.YQ.YQ.YQ.AAAA", "a.b.c", "9" * 4000, "é"])
async def test_a_forged_cookie_begins_nothing(site: Site, cookie: str) -> None:
    answer = await site.client.get(
        "/login/callback",
        params={"code": "c", "state": "a"},
        headers=[(b"Cookie", f"cubicle-sign-in={cookie}".encode())],
    )
    assert answer.status_code == 401
    assert site.issuer.exchanged == []


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"}, {"nonce": None}, {"aud": "another-client"}, {"aud": f"{BASE}/mcp"}, {"exp": 1000},
        {"iss": "https://evil.example"}, {"azp": "another-client"}, {"sub": None}, {"key": rsa_key("one")},
    ],
    ids=["nonce", "no nonce", "audience", "access token", "expired", "issuer", "azp", "no subject", "key"],
)  # fmt: skip
async def test_an_id_token_that_does_not_fit_signs_nobody_in(site: Site, claims: dict[str, Any]) -> None:
    assert (await finish(site, await begin(site), **claims)).status_code == 401
    assert await who(site) == 401


async def test_what_the_issuer_refuses_is_said_and_nothing_of_it_is_shown(site: Site) -> None:
    asked = await begin(site)
    answer = await finish(
        site,
        asked,
        {"state": asked["state"], "error": "access_denied", "error_description": "<script>alert(1)</script>"},
    )
    assert answer.status_code == 401
    assert "<script>alert" not in answer.text
    assert "did not let you in" in answer.text


async def test_an_answer_of_another_issuer_is_refused(site: Site) -> None:
    asked = await begin(site)
    answer = {"code": "c", "state": asked["state"], "iss": "https://evil.example"}
    assert (await finish(site, asked, answer)).status_code == 401
    assert site.issuer.exchanged == []


async def test_a_token_endpoint_that_sends_garbage(site: Site) -> None:
    asked = await begin(site)
    site.issuer.id_token = "garbage"
    answer = await site.client.get("/login/callback", params={"code": "c", "state": asked["state"]})
    assert answer.status_code == 401


async def test_a_page_of_another_site_signs_nobody_out(site: Site) -> None:
    await finish(site, await begin(site))
    assert (await site.client.post("/logout", headers={"Origin": "https://evil.example"})).status_code == 403
    assert await who(site) == 200


async def test_without_a_client_id_there_is_no_such_sign_in(tmp_path: Path) -> None:
    async with issuer_server() as server, site_of(tmp_path, server) as site:
        assert (await site.client.get("/login/oauth")).status_code == 404
        assert (await site.client.get("/login/callback", params={"code": "c", "state": "s"})).status_code == 404


async def test_an_issuer_that_is_down_says_so(tmp_path: Path) -> None:
    async with issuer_server() as server:
        server.metadata = {"issuer": "https://other.example"}
        async with site_of(tmp_path, server, oauth_client_id=CLIENT) as site:
            answer = await site.client.get("/login/oauth", headers=HTML)
            assert answer.status_code == 503
            assert "cannot be reached" in answer.text
