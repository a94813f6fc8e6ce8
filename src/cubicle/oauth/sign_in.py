"""People sign in to the pages by an issuer: authorization code with PKCE, state and nonce (OpenID Connect)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import httpx

from cubicle.oauth.access_tokens import AccessTokens, BadToken
from cubicle.oauth.documents import BadDocument, fetch_json
from cubicle.oauth.issuer import Issuer, IssuerUnavailable
from cubicle.oauth.person import BadClaims, Person, person_of

_ID_TOKEN_TYPES = (None, "jwt")
_MAX_CODE = 4096


class SignInFailed(Exception):
    """The person is not signed in; the message is for the person."""


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """What the browser keeps between going to the issuer and coming back: only it can finish what it began."""

    state: str
    nonce: str
    verifier: str
    target: str
    """The page to lead on to."""

    @classmethod
    def begin(cls, target: str) -> PendingSignIn:
        return cls(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48), target)

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class IssuerSignIn:
    """The service as a client of its first issuer."""

    def __init__(
        self, tokens: AccessTokens, web: httpx.AsyncClient, client_id: str, client_secret: str, callback: str
    ) -> None:
        self._tokens = tokens
        self._web = web
        self._issuer: Issuer = next(iter(tokens.issuers.values()))
        self._client_id = client_id
        self._client_secret = client_secret
        self._callback = callback

    async def url(self, pending: PendingSignIn) -> str:
        """Where the person goes to sign in. Raises SignInFailed."""
        try:
            endpoint = (await self._issuer.metadata()).authorization_endpoint
        except IssuerUnavailable:
            endpoint = ""
        if not endpoint:
            raise SignInFailed("The sign-in service cannot be reached now. Try again, or sign in with a key.")
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._callback,
            "scope": "openid email",
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": pending.challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    async def finish(self, pending: PendingSignIn | None, answer: Mapping[str, str]) -> Person:
        """The person whom the issuer sent back with this answer. Raises SignInFailed."""
        state, code = answer.get("state", ""), answer.get("code", "")
        if pending is None or not hmac.compare_digest(state.encode(), pending.state.encode()):
            raise SignInFailed("This sign-in was not begun in this browser, or too long ago. Sign in again.")
        try:
            metadata = await self._issuer.metadata()
            # RFC 9207: an answer of another issuer is not mistaken for this one's.
            if answer.get("iss", "" if metadata.names_itself else self._issuer.url) != self._issuer.url:
                raise SignInFailed("The answer is of another sign-in service.")
            if not code or len(code) > _MAX_CODE or answer.get("error"):
                raise SignInFailed("The sign-in service did not let you in. Sign in again, or with a key.")
            return await self._person(await self._exchange(metadata.token_endpoint, code, pending), pending)
        except (IssuerUnavailable, BadDocument):
            raise SignInFailed("The sign-in service did not answer as it should. Sign in again.") from None

    async def sign_out_url(self, back_to: str) -> str | None:
        """Where the person also signs out at the issuer, if it offers that."""
        try:
            endpoint = (await self._issuer.metadata()).end_session_endpoint
        except IssuerUnavailable:
            return None
        asked = urlencode({"client_id": self._client_id, "post_logout_redirect_uri": back_to})
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{asked}" if endpoint else None

    async def _exchange(self, endpoint: str, code: str, pending: PendingSignIn) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "client_id": self._client_id,
            "code_verifier": pending.verifier,
        }
        headers = {}
        if self._client_secret:
            pair = f"{quote(self._client_id, safe='')}:{quote(self._client_secret, safe='')}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        answer = await fetch_json(self._web, endpoint, form, headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise BadDocument(f"{endpoint} sent no id_token")
        return token

    async def _person(self, token: str, pending: PendingSignIn) -> Person:
        try:
            issuer, claims = await self._tokens.verified_claims(token, [self._client_id], _ID_TOKEN_TYPES)
            nonce = claims.get("nonce")
            if issuer is not self._issuer or claims.get("azp", self._client_id) != self._client_id:
                raise BadToken("The token is another client's.")
            if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), pending.nonce.encode()):
                raise BadToken("The token is of another sign-in.")
            return person_of(claims, self._tokens.claims, list(self._tokens.issuers))
        except (BadToken, BadClaims) as error:
            raise SignInFailed(str(error)) from None
