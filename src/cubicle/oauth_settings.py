"""The settings of sign-in by OAuth, and of the web pages that may call MCP: a part of `Settings`."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode

from cubicle.core.api_keys import RESERVED, is_tenant
from cubicle.core.origins import origin_of

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Every algorithm that can be allowed: signatures with a public key, none with a shared secret."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class OAuthSettings(BaseSettings):
    """docs/oauth.md says how they work together."""

    oauth_issuers: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="URLs of the authorization servers whose access tokens open the service, separated by commas, each "
        "exactly as in `iss` of its tokens. Empty: no OAuth. Needs a key as well (docs/oauth.md).",
    )
    oauth_audience: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="What `aud` of a token must name, one of these, separated by commas; empty: the URL of an MCP path "
        "(PUBLIC_BASE_URL and MCP_PATHS).",
    )
    oauth_scopes: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Scopes that a token must have, separated by commas or blanks; clients are told to ask for them.",
    )
    oauth_scope_claim: str = Field("scope", description="Claim with the scopes: a text with blanks, or a list.")
    oauth_tenant: str = Field(
        "people", description="Tenant of the people who come by OAuth, where OAUTH_TENANT_CLAIM is empty."
    )
    oauth_tenant_claim: str = Field(
        "", description="Claim that names the tenant; a token without it is refused. A path is written with dots."
    )
    oauth_role_claim: str = Field(
        "",
        description="Claim with the roles of a person: a text or a list; with dots for a path, as realm_access.roles.",
    )
    oauth_operator_roles: Annotated[tuple[str, ...], NoDecode] = Field(
        ("operator",), description="Values of OAUTH_ROLE_CLAIM that make a person an operator, separated by commas."
    )
    oauth_email_claim: str = Field("email", description="Claim with the e-mail of a person.")
    oauth_algorithms: Annotated[tuple[str, ...], NoDecode] = Field(
        ALGORITHMS, description="Algorithms by which tokens may be signed, separated by commas."
    )
    oauth_clock_skew: int = Field(
        60, ge=0, le=300, description="Seconds by which the clock of an issuer may differ from that of the service."
    )
    oauth_client_id: str = Field(
        "",
        description="Client id of the service at the first issuer, for people who sign in to the pages; empty: they "
        "sign in with a key only. Redirect URI: PUBLIC_BASE_URL/login/callback.",
    )
    oauth_client_secret: str = Field(
        "", description="Secret of that client; empty: a public client, which PKCE protects."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins of web pages that may call the MCP paths, separated by commas; *: any. Empty: any page "
        "that shows a key or token; none, when the service has no key.",
    )

    @field_validator(
        "oauth_issuers", "oauth_audience", "oauth_scopes", "oauth_operator_roles", "oauth_algorithms", "cors_origins",
        mode="before",
    )  # fmt: skip
    @classmethod
    def _list(cls, value: Any) -> tuple[str, ...]:
        parts = value.replace(" ", ",").split(",") if isinstance(value, str) else list(value)
        return tuple(dict.fromkeys(p.strip() for p in parts if p.strip()))

    @field_validator("oauth_issuers")
    @classmethod
    def _issuers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for issuer in value:
            parts = urlsplit(issuer)
            safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
            if not safe or not parts.hostname or parts.query or parts.fragment or not issuer.isascii():
                raise ValueError("must be URLs that start with https:// (http:// for this machine only)")
        return value

    @field_validator("oauth_algorithms")
    @classmethod
    def _algorithms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not set(value) <= set(ALGORITHMS):
            raise ValueError(f"must be some of {', '.join(ALGORITHMS)}")
        return value

    @field_validator("oauth_tenant")
    @classmethod
    def _tenant(cls, value: str) -> str:
        if not is_tenant(value) or value.lower() in RESERVED:
            raise ValueError("must be the name of a tenant, and none of the operator's")
        return value

    @field_validator("oauth_scopes")
    @classmethod
    def _scopes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not scope.isascii() or not scope.isprintable() or '"' in scope or "\\" in scope for scope in value):
            raise ValueError("must be scopes of printable ASCII without quotes")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value if value != ("*",) else ():
            parts = urlsplit(origin)
            if origin_of(origin) is None or parts.path or parts.query or not origin.startswith(("http://", "https://")):
                raise ValueError("must be origins (https://app.example.com), separated by commas, or *")
        return tuple(origin.lower() for origin in value)
