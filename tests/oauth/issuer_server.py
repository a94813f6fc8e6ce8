"""An authorization server that the tests make behave badly: real keys, real HTTP, and whatever answer is wanted."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from joserfc import jwk, jwt
from joserfc.jwk import Key
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.service import serve

AUDIENCE = "https://box.example/mcp"


def rsa_key(kid: str) -> jwk.RSAKey:
    return jwk.RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


_UNUSED: list[jwk.RSAKey] = []
"""Keys of servers that are down: making one takes longer than most tests."""


@dataclass
class IssuerServer:
    """Its documents, as they are now; a test changes them."""

    url: str = ""
    keys: list[Key] = field(default_factory=list)
    jwks: Response | None = None
    """In place of the keys."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Over what is there."""
    silent: asyncio.Event | None = None
    """Nothing is answered before it is set."""
    fetched: int = 0
    id_token: str = ""
    """What a code is exchanged for."""
    exchanged: list[dict[str, str]] = field(default_factory=list)

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Of a good token; None takes a claim out."""
        now = int(time.time())
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "nbf": now, "exp": now + 300}
        return {name: value for name, value in (good | changed).items() if value is not None}

    def token(self, header: dict[str, Any] | None = None, key: Key | None = None, **changed: Any) -> str:
        key = key or self.keys[0]
        header = {"alg": "RS256", "kid": key.kid, "typ": "at+jwt"} | (header or {})
        header = {name: value for name, value in header.items() if value is not None}
        return jwt.encode(header, self.claims(**changed), key, algorithms=[header["alg"]])

    async def configuration(self, _request: Request) -> Response:
        if self.silent is not None:
            await self.silent.wait()
        ends = {"authorization_endpoint": f"{self.url}/auth", "token_endpoint": f"{self.url}/token"}
        return JSONResponse({"issuer": self.url, "jwks_uri": f"{self.url}/jwks", **ends} | self.metadata)

    async def key_set(self, _request: Request) -> Response:
        self.fetched += 1
        if self.silent is not None:
            await self.silent.wait()
        return self.jwks or JSONResponse({"keys": [key.as_dict(private=False) for key in self.keys]})

    async def exchange(self, request: Request) -> Response:
        async with request.form() as form:
            self.exchanged.append({name: str(value) for name, value in form.items()})
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": self.id_token})


@asynccontextmanager
async def issuer_server() -> AsyncIterator[IssuerServer]:
    """One that is up, with a key that no other one has that is up, too."""
    key = _UNUSED.pop() if _UNUSED else rsa_key("one")
    server = IssuerServer(keys=[key])
    routes = [Route("/.well-known/openid-configuration", server.configuration), Route("/jwks", server.key_set)]
    routes.append(Route("/token", server.exchange, methods=["POST"]))
    async with serve(Starlette(routes=routes)) as url:
        server.url = url
        yield server
    _UNUSED.append(key)


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token written by hand."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
