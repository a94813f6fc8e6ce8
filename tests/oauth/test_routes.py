"""The table of routes against the tokens of an issuer: every URL and WebSocket, with every token that is not good."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator

import httpx
import pytest
from joserfc.jwk import RSAKey

from cubicle.app import running
from cubicle.chat.access import Access
from cubicle.chat.authentication import Who
from cubicle.core.identity import Role
from cubicle.core.signing import SignIn
from cubicle.drivers.factory import make_driver
from cubicle.http_api.routes import Row
from cubicle.settings import Settings
from tests.http_api.test_route_table import TABLE, Shown, Site, tried
from tests.oauth.issuer_server import IssuerServer, forged, issuer_server, rsa_key
from tests.support.emptying import empty
from tests.support.service import serve

BASE = "https://box.example"


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with issuer_server() as issuer:
        settings = Settings(  # type: ignore[call-arg]
            _env_file=None, driver="memory", data_dir=tmp_path_factory.mktemp("data"), pool_size=0,
            mcp_api_key="a-good-key", public_base_url=BASE, oauth_issuers=issuer.url, oauth_role_claim="roles",
        )  # fmt: skip
        async with (
            running(settings) as app,
            serve(app) as url,
            httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
        ):
            shown = {name: Shown({"Authorization": f"Bearer {token}"}) for name, token in tokens(issuer).items()}
            shown["token in the query"] = Shown(query=f"?access_token={issuer.token(aud=f'{BASE}/mcp')}")
            shown["token as another scheme"] = Shown({"Authorization": f"DPoP {issuer.token(aud=f'{BASE}/mcp')}"})
            links = (await asyncio.to_thread(Access._open, settings, settings.data_dir / "elsewhere")).links
            for name, role in (("sign-in", Role.USER), ("operator's sign-in", Role.OPERATOR)):
                cookie = links.sign_in(SignIn("people", role, user="a@b.c", person="alice"))
                shown[name] = Shown({"Cookie": f"cubicle-login={cookie}"})
            yield Site(url, client, shown)
        await empty(make_driver(settings))


def tokens(issuer: IssuerServer) -> dict[str, str]:
    audience = f"{BASE}/mcp"
    key = issuer.keys[0]
    assert isinstance(key, RSAKey)
    unsigned = forged({"alg": "HS256", "kid": "one"}, issuer.claims(aud=audience)).rpartition(".")[0]
    signature = hmac.new(key.as_pem(private=False), unsigned.encode(), hashlib.sha256).digest()
    good = issuer.token(aud=audience)
    return {
        "token": good,
        "operator's token": issuer.token(aud=audience, roles=["operator"]),
        "another issuer": issuer.token(aud=audience, iss="https://evil.example"),
        "another audience": issuer.token(aud=f"{BASE}/other"),
        "expired": issuer.token(aud=audience, exp=1000),
        "not yet": issuer.token(aud=audience, nbf=9_999_999_999),
        "no signature": forged({"alg": "none", "kid": "one"}, issuer.claims(aud=audience)),
        "shared secret": forged({"alg": "HS256", "kid": "one"}, issuer.claims(aud=audience), signature),
        "another key": issuer.token(aud=audience, key=rsa_key("one")),
        "an unknown key": issuer.token({"kid": "two"}, aud=audience),
        "cut": good[:-20],
    }


GOOD = {"token", "operator's token"}
SIGN_INS = {"sign-in", "operator's sign-in"}
LET_IN = {
    Who.BEARER: GOOD,
    Who.KEY: GOOD | SIGN_INS,
    Who.OPERATOR: {"operator's token", "operator's sign-in"},
    Who.METRICS: {"operator's token", "operator's sign-in"},
    Who.CHAT: GOOD | SIGN_INS,
}


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: f"{row.methods} {row.template}")
async def test_a_route_opens_to_good_tokens_only(site: Site, row: Row) -> None:
    names = tried(site.credentials, row, GOOD | SIGN_INS | {"expired"})
    found = {name for name in names if await site.lets_in(row, site.credentials[name], looks=False)}
    assert found == names & LET_IN.get(row.who, names)
