"""Issuers that are down, slow, redirect, or send garbage; and keys that change."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from joserfc import jwk
from starlette.responses import JSONResponse, RedirectResponse, Response

from cubicle.oauth import documents, issuer
from cubicle.oauth.access_tokens import AccessTokens, BadToken, TokenRules
from cubicle.oauth.issuer import Issuer, IssuerUnavailable
from cubicle.oauth.person import ClaimRules
from tests.oauth.issuer_server import AUDIENCE, IssuerServer, rsa_key


class Clock:
    """Monotonic time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tokens_of(server: IssuerServer, web: httpx.AsyncClient, clock: Any = time.monotonic) -> AccessTokens:
    return AccessTokens([Issuer(server.url, web, clock)], TokenRules((AUDIENCE,)), ClaimRules("people"))


GARBAGE: dict[str, Any] = {
    "no JSON": lambda: Response("<html>"),
    "a list": lambda: JSONResponse([]),
    "no keys": lambda: JSONResponse({"keys": []}),
    "keys that are no list": lambda: JSONResponse({"keys": {"one": 1}}),
    "keys that are no objects": lambda: JSONResponse({"keys": [1, None, "x", []]}),
    "too many keys": lambda: JSONResponse({"keys": [{}] * 1000}),
    "deep": lambda: Response("[" * 100_000),
    "huge": lambda: Response(b" " * (2 << 20)),
    "an error": lambda: Response("no", 500),
    "a redirect": lambda: RedirectResponse("/.well-known/openid-configuration"),
    "a shared secret": lambda: JSONResponse({"keys": [{"kty": "oct", "k": "c2VjcmV0c2VjcmV0", "kid": "one"}]}),
    "half a key": lambda: JSONResponse(
        {"keys": [{"kty": "RSA", "kid": "one", "n": "AQAB"}, {"kty": "EC", "crv": "P-0"}]}
    ),
    "a short key": lambda: JSONResponse({"keys": [{"kty": "RSA", "kid": "one", "e": "AQAB", "n": "3" * 86}]}),
}


@pytest.mark.parametrize("case", GARBAGE)
async def test_garbage_in_place_of_keys_opens_nothing(issuer: IssuerServer, web: httpx.AsyncClient, case: str) -> None:
    issuer.jwks = GARBAGE[case]()
    async with tokens_of(issuer, web) as tokens:
        with pytest.raises(IssuerUnavailable):
            await tokens.verify(issuer.token())


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"}, {"issuer": None}, {"jwks_uri": None}, {"jwks_uri": 7},
        {"jwks_uri": "file:///etc/passwd"}, {"jwks_uri": "ftp://x/"}, {"token_endpoint": "javascript:alert(1)"},
    ],
)  # fmt: skip
async def test_metadata_that_does_not_fit_opens_nothing(
    issuer: IssuerServer, web: httpx.AsyncClient, metadata: dict[str, Any]
) -> None:
    issuer.metadata = metadata
    async with tokens_of(issuer, web) as tokens:
        with pytest.raises(IssuerUnavailable):
            await tokens.verify(issuer.token())


def test_an_issuer_with_tls_has_no_key_set_without() -> None:
    document = {"issuer": "https://id.example", "jwks_uri": "http://id.example/jwks"}
    with pytest.raises(documents.BadDocument):
        issuer.read_metadata("https://id.example", document)


async def test_a_slow_issuer_is_given_up(issuer: IssuerServer, web: httpx.AsyncClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(documents, "TIMEOUT", 0.3)
    issuer.silent = asyncio.Event()
    try:
        async with tokens_of(issuer, web) as tokens:
            began = time.monotonic()
            asked = [tokens.verify(issuer.token(sub=f"s{number}")) for number in range(20)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(answer) for answer in answers} == {IssuerUnavailable}
            assert time.monotonic() - began < 5
    finally:
        issuer.silent.set()


async def test_an_issuer_that_is_down_is_asked_again(issuer: IssuerServer, web: httpx.AsyncClient) -> None:
    clock = Clock()
    issuer.jwks = Response("down", 503)
    async with tokens_of(issuer, web, clock) as tokens:
        with pytest.raises(IssuerUnavailable):
            await tokens.verify(issuer.token())
        issuer.jwks = None
        clock.now += 2
        assert await tokens.verify(issuer.token())


async def test_known_keys_serve_while_an_issuer_is_down_and_not_for_ever(
    issuer: IssuerServer, web: httpx.AsyncClient
) -> None:
    clock = Clock()
    async with tokens_of(issuer, web, clock) as tokens:
        assert await tokens.verify(issuer.token())
        issuer.jwks = Response("down", 503)
        clock.now += 3600
        assert await tokens.verify(issuer.token(sub="bob"))
        clock.now += 24 * 3600
        with pytest.raises(IssuerUnavailable):
            await tokens.verify(issuer.token(sub="carol"))


async def test_a_new_key_is_fetched_when_a_token_names_it(issuer: IssuerServer, web: httpx.AsyncClient) -> None:
    clock = Clock()
    async with tokens_of(issuer, web, clock) as tokens:
        old = issuer.token()
        assert await tokens.verify(old)
        issuer.keys = [rsa_key("two")]
        clock.now += 60
        assert await tokens.verify(issuer.token())
        assert tokens.known(old) is None, "what was verified with a key that is gone"
        with pytest.raises(BadToken, match="key"):
            await tokens.verify(old)


async def test_invented_key_ids_do_not_make_the_service_ask(issuer: IssuerServer, web: httpx.AsyncClient) -> None:
    clock = Clock()
    async with tokens_of(issuer, web, clock) as tokens:
        assert await tokens.verify(issuer.token())
        asked, clock.now = issuer.fetched, clock.now + 60
        for number in range(50):
            with pytest.raises(BadToken, match="key"):
                await tokens.verify(issuer.token({"kid": f"invented-{number}"}))
        assert issuer.fetched == asked + 1


async def test_a_token_that_names_no_key_must_leave_no_choice(issuer: IssuerServer, web: httpx.AsyncClient) -> None:
    issuer.keys = [rsa_key("one"), jwk.ECKey.generate_key("P-256", {"kid": "ec"})]
    async with tokens_of(issuer, web, Clock()) as tokens:
        assert await tokens.verify(issuer.token({"kid": None}))
    issuer.keys.append(rsa_key("two"))
    async with tokens_of(issuer, web, Clock()) as tokens:
        with pytest.raises(BadToken, match="key"):
            await tokens.verify(issuer.token({"kid": None}))


async def test_a_key_for_encryption_checks_no_signature(issuer: IssuerServer, web: httpx.AsyncClient) -> None:
    issuer.keys = [rsa_key("one"), jwk.RSAKey.generate_key(2048, {"kid": "enc", "use": "enc"})]
    async with tokens_of(issuer, web, Clock()) as tokens:
        with pytest.raises(BadToken, match="key"):
            await tokens.verify(
                issuer.token({"kid": "enc"}, key=jwk.RSAKey.import_key(issuer.keys[1].as_dict(private=True, use="sig")))
            )  # type: ignore[arg-type]
