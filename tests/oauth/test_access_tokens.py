"""Which access tokens open the service, and which do not."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from joserfc import jwk, jwt

from cubicle.core.identity import Role
from cubicle.oauth import access_tokens
from cubicle.oauth.access_tokens import AccessTokens, BadToken, MissingScope, TokenRules
from cubicle.oauth.issuer import Issuer
from cubicle.oauth.person import ClaimRules, chat_name
from cubicle.oauth_settings import ALGORITHMS
from tests.oauth.issuer_server import AUDIENCE, IssuerServer, forged, issuer_server, rsa_key

CLAIMS = ClaimRules("people")


def tokens_of(issuer: IssuerServer, web: httpx.AsyncClient, claims: ClaimRules = CLAIMS, **rules: Any) -> AccessTokens:
    return AccessTokens([Issuer(issuer.url, web)], TokenRules((AUDIENCE,), **rules), claims)


@pytest.fixture
async def tokens(issuer: IssuerServer, web: httpx.AsyncClient) -> AsyncIterator[AccessTokens]:
    async with tokens_of(issuer, web) as opened:
        yield opened


async def test_a_good_token_names_its_person(issuer: IssuerServer, tokens: AccessTokens) -> None:
    person = await tokens.verify(issuer.token(email="alice@example.com", scope="a b"))
    assert (person.subject, person.tenant, person.name, person.email) == (
        "alice",
        "people",
        "alice",
        "alice@example.com",
    )
    assert (person.role, person.scopes, person.issuer) == (Role.USER, frozenset({"a", "b"}), issuer.url)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_every_allowed_algorithm_works(issuer: IssuerServer, tokens: AccessTokens, algorithm: str) -> None:
    curve = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}.get(algorithm)
    if curve:
        issuer.keys = [jwk.ECKey.generate_key(curve, {"kid": "ec"})]
    elif algorithm == "Ed25519":
        issuer.keys = [jwk.OKPKey.generate_key("Ed25519", {"kid": "ed"})]
    token = issuer.token({"alg": algorithm})
    assert (await tokens.verify(token)).subject == "alice"


NOW = int(time.time())
BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "another issuer": {"iss": "https://evil.example"},
    "the issuer with a slash": {"iss": "{url}/"},
    "no issuer": {"iss": None},
    "a list as issuer": {"iss": ["{url}"]},
    "another audience": {"aud": "https://box.example/other"},
    "the audience with a slash": {"aud": AUDIENCE + "/"},
    "other audiences": {"aud": ["https://a.example", "https://b.example"]},
    "no audience": {"aud": None},
    "an empty audience": {"aud": []},
    "an object as audience": {"aud": {AUDIENCE: 1}},
    "expired": {"exp": NOW - 3600},
    "no expiry": {"exp": None},
    "a text as expiry": {"exp": str(NOW + 3600)},
    "not a number as expiry": {"exp": float("nan")},
    "an endless expiry": {"exp": float("inf")},
    "true as expiry": {"exp": True},
    "not yet": {"nbf": NOW + 3600},
    "made in the future": {"iat": NOW + 3600},
    "no subject": {"sub": None},
    "an empty subject": {"sub": ""},
    "a number as subject": {"sub": 7},
    "a subject with line breaks": {"sub": "alice\r\nSet-Cookie: x"},
    "a long subject": {"sub": "a" * 256},
}


@pytest.mark.parametrize("case", BAD_CLAIMS)
async def test_a_token_with_claims_that_do_not_fit_is_refused(
    issuer: IssuerServer, tokens: AccessTokens, case: str
) -> None:
    changed = json.loads(json.dumps(BAD_CLAIMS[case]).replace("{url}", issuer.url))
    with pytest.raises(BadToken):
        await tokens.verify(issuer.token(**changed))
    assert await tokens.verify(issuer.token())


async def test_the_clock_of_an_issuer_may_differ_a_little(issuer: IssuerServer, tokens: AccessTokens) -> None:
    now = int(time.time())
    assert await tokens.verify(issuer.token(exp=now - 30, nbf=now - 60, iat=now - 60))
    assert await tokens.verify(issuer.token(exp=now + 300, nbf=now + 30, iat=now + 30))


async def test_a_token_without_a_signature_is_refused(issuer: IssuerServer, tokens: AccessTokens) -> None:
    for algorithm in ("none", "None", "NONE", "", None, 1, ["RS256"]):
        with pytest.raises(BadToken, match="algorithm"):
            await tokens.verify(forged({"alg": algorithm, "kid": "one"}, issuer.claims()))
    with pytest.raises(BadToken):
        await tokens.verify(forged({"kid": "one"}, issuer.claims()))


@pytest.mark.parametrize("form", ["pem", "der", "n"])
async def test_the_public_key_is_no_shared_secret(issuer: IssuerServer, tokens: AccessTokens, form: str) -> None:
    key = issuer.keys[0]
    secret = key.as_dict(private=False)["n"].encode() if form == "n" else getattr(key, f"as_{form}")(private=False)  # type: ignore[index, union-attr]
    for algorithm, digest in (("HS256", hashlib.sha256), ("HS512", hashlib.sha512)):
        unsigned = forged({"alg": algorithm, "kid": "one"}, issuer.claims()).rpartition(".")[0]
        signature = hmac.new(secret, unsigned.encode(), digest).digest()
        with pytest.raises(BadToken, match="algorithm"):
            await tokens.verify(forged({"alg": algorithm, "kid": "one"}, issuer.claims(), signature))


async def test_a_token_of_another_key_is_refused(issuer: IssuerServer, tokens: AccessTokens) -> None:
    stranger = rsa_key("one")
    with pytest.raises(BadToken, match="signature"):
        await tokens.verify(issuer.token(key=stranger))
    own = {"jwk": stranger.as_dict(private=False), "jku": "http://127.0.0.1:1/jwks", "x5u": "http://127.0.0.1:1/"}
    for header in ({"jwk": own["jwk"]}, {"jku": own["jku"]}, {"x5u": own["x5u"]}):
        with pytest.raises(BadToken):
            await tokens.verify(issuer.token(header, key=stranger))


@pytest.mark.parametrize("kid", ["../../etc/passwd", "one' OR '1'='1", "\0", "a" * 200, 1, ["one"], {"one": 1}, True])
async def test_a_key_id_only_names_a_key(issuer: IssuerServer, tokens: AccessTokens, kid: Any) -> None:
    with pytest.raises(BadToken):
        await tokens.verify(forged({"alg": "RS256", "kid": kid}, issuer.claims(), b"x" * 256))


async def test_a_token_of_another_kind_is_refused(issuer: IssuerServer, tokens: AccessTokens) -> None:
    for kind in ("logout+jwt", "dpop+jwt", "JOSE", 1):
        with pytest.raises(BadToken, match="kind"):
            await tokens.verify(forged({"alg": "RS256", "kid": "one", "typ": kind}, issuer.claims(), b"x"))
    for kind in ("JWT", "at+jwt", "application/at+jwt", "AT+JWT"):
        assert await tokens.verify(issuer.token({"typ": kind}))


async def test_what_is_no_token_is_refused_quickly(issuer: IssuerServer, tokens: AccessTokens) -> None:
    good = issuer.token()
    deep = "eyJ" + "W1tb" * 3000
    began = time.process_time()
    for text in (
        "eyJ..", "eyJhbGciOiJSUzI1NiJ9..", "a.b.c", "..", good + "x", good[:-8], good.replace(".", "", 1), f"{deep}.{deep}.x",
        f"eyJ{'A' * 60_000}.e30.x", good.replace("eyJ", "eyJé"), forged({"alg": "RS256"}, [], b""),  # type: ignore[arg-type]
        forged({"alg": "RS256", "crit": ["b64"], "b64": False, "kid": "one"}, issuer.claims(), b"x"),
    ):  # fmt: skip
        with pytest.raises(BadToken):
            await tokens.verify(text)
    assert time.process_time() - began < 2


async def test_a_verified_token_is_not_verified_again(
    issuer: IssuerServer, tokens: AccessTokens, monkeypatch: Any
) -> None:
    token = issuer.token()
    first = await tokens.verify(token)

    def fail(*_arguments: Any, **_named: Any) -> None:
        raise AssertionError("it was")

    monkeypatch.setattr(jwt, "decode", fail)
    assert await tokens.verify(token) is first
    assert tokens.known(token) is first
    assert tokens.known(token[:-1]) is None


async def test_a_remembered_token_ends_with_its_time(issuer: IssuerServer, web: httpx.AsyncClient) -> None:
    clock = [time.time()]
    tokens = AccessTokens([Issuer(issuer.url, web)], TokenRules((AUDIENCE,), skew=0), CLAIMS, lambda: clock[0])
    async with tokens:
        token = issuer.token(exp=int(clock[0]) + 100)
        assert await tokens.verify(token)
        clock[0] += 200
        assert tokens.known(token) is None
        with pytest.raises(BadToken, match="expired"):
            await tokens.verify(token)


async def test_the_memory_of_tokens_is_bounded(issuer: IssuerServer, tokens: AccessTokens, monkeypatch: Any) -> None:
    monkeypatch.setattr(access_tokens, "_MAX_KNOWN", 3)
    made = [issuer.token(jti=str(number)) for number in range(5)]
    for token in made:
        await tokens.verify(token)
    assert [tokens.known(token) is not None for token in made] == [False, False, True, True, True]


async def test_claims_say_tenant_role_and_scopes(issuer: IssuerServer, web: httpx.AsyncClient) -> None:
    rules = ClaimRules(
        "people", "https://example.com/org", "realm_access.roles", frozenset({"ops"}), "mail", "permissions"
    )
    async with tokens_of(issuer, web, rules) as tokens:
        claims: dict[str, Any] = {"https://example.com/org": "acme", "realm_access": {"roles": ["x", "ops"]}}
        token = issuer.token(**claims, mail="a@b.c", permissions=["p"])
        person = await tokens.verify(token)
        assert (person.tenant, person.role, person.email, person.scopes) == (
            "acme",
            Role.OPERATOR,
            "a@b.c",
            frozenset({"p"}),
        )
        for tenant in (None, "", "main", "Operator", "cubicle", "a/b", "../x", 7, ["acme"], "x" * 65):
            with pytest.raises(BadToken, match="tenant"):
                await tokens.verify(issuer.token(**(claims | {"https://example.com/org": tenant})))


async def test_a_mail_address_that_nobody_verified_is_not_taken(issuer: IssuerServer, tokens: AccessTokens) -> None:
    for verified in (False, "false", None, 0):
        claims = issuer.claims(email="boss@example.com") | {"email_verified": verified}
        token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, issuer.keys[0])
        assert (await tokens.verify(token)).email is None


async def test_a_token_without_a_scope_that_is_asked_for(issuer: IssuerServer, web: httpx.AsyncClient) -> None:
    async with tokens_of(issuer, web, scopes=frozenset({"mcp", "run"})) as tokens:
        assert await tokens.verify(issuer.token(scope="run other mcp"))
        with pytest.raises(MissingScope, match=r": mcp$"):
            await tokens.verify(issuer.token(scope="run"))


async def test_the_same_subject_of_two_issuers_is_two_people(issuer: IssuerServer, web: httpx.AsyncClient) -> None:
    async with issuer_server() as second:
        issuers = [Issuer(issuer.url, web), Issuer(second.url, web)]
        async with AccessTokens(issuers, TokenRules((AUDIENCE,)), CLAIMS) as tokens:
            names = [(await tokens.verify(server.token())).name for server in (issuer, second)]
            assert names[0] == "alice"
            assert names[1].startswith("sha256-")
            with pytest.raises(BadToken):
                await tokens.verify(second.token(iss=issuer.url))


@pytest.mark.parametrize(
    "subject", ["auth0|5f7c", "a b", "ä", "a:b", ".hidden", "a" * 65, "sha256-" + "0" * 40, "../x"]
)
def test_a_subject_that_cannot_stand_in_a_chat_id_is_hashed(subject: str) -> None:
    name = chat_name(subject)
    assert name.startswith("sha256-")
    assert name != subject
    assert len(name) == 47
