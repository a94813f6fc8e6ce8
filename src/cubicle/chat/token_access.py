"""What an OAuth access token opens, and how a client is told where to get one (RFC 9728, RFC 6750)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import httpx

from cubicle.core.api_keys import RESERVED
from cubicle.core.identity import Credential, Identity
from cubicle.core.keys import bearer_key
from cubicle.core.problem import Problem
from cubicle.oauth.access_tokens import AccessTokens, BadToken, MissingScope, TokenRules, looks_like_token
from cubicle.oauth.issuer import Issuer, IssuerUnavailable
from cubicle.oauth.person import ClaimRules, Person
from cubicle.oauth.sign_in import IssuerSignIn
from cubicle.settings import BadSettings, Settings, base_url

WELL_KNOWN = "/.well-known/oauth-protected-resource"
_RETRY_SECONDS = 5
_HOW = "Sign in at an authorization server of this service, and send its access token or an API key as Bearer."


class TokenAccess:
    """The access tokens of one service, at the URLs that its clients know."""

    def __init__(self, tokens: AccessTokens, base_url: str, mcp_paths: Sequence[str]) -> None:
        self.tokens = tokens
        self.base_url = base_url
        self.mcp_paths = tuple(mcp_paths)

    async def identify(self, token: str, path: str) -> Identity | Problem:
        """Who it is, and until when, or why the token does not do."""
        try:
            person = await self.tokens.verify(token)
            return replace(identity_of(person), expires=person.expires + self.tokens.rules.skew)
        except BadToken as error:
            return self.challenged(Problem(401, str(error)), path, "invalid_token")
        except MissingScope as error:
            return self.challenged(Problem(403, str(error)), path, "insufficient_scope")
        except IssuerUnavailable:
            detail = "The keys of the token's issuer cannot be fetched now, so the token cannot be checked. Try again."
            return Problem(503, detail, {"Retry-After": str(_RETRY_SECONDS)})

    def challenged(self, problem: Problem, path: str, error: str = "") -> Problem:
        """The same answer with the header that leads a client to the authorization server."""
        if problem.status not in (401, 403) or (problem.status == 403 and not error):
            return problem
        known = path if path in self.mcp_paths else ""
        parts = [f'resource_metadata="{self.base_url}{WELL_KNOWN}{known}"']
        if self.tokens.rules.scopes:
            parts.append(f'scope="{" ".join(sorted(self.tokens.rules.scopes))}"')
        if error:
            parts += [f'error="{error}"', f'error_description="{problem.detail}"']
        header = {"WWW-Authenticate": "Bearer " + ", ".join(parts)}
        detail = problem.detail if error else f"{problem.detail} {_HOW}"
        return replace(problem, detail=detail, headers={**problem.headers, **header})

    def has_tenant(self, tenant: str) -> bool:
        """Whether a token can be of this tenant."""
        rules = self.tokens.claims
        return tenant == rules.tenant if not rules.tenant_claim else tenant.lower() not in RESERVED

    def tenant(self, authorization: str | None) -> str | None:
        """Whose request it is, if its token was verified before: whom its first steps are charged to."""
        token = bearer_key(authorization)
        person = self.tokens.known(token) if token is not None and looks_like_token(token) else None
        return None if person is None else person.tenant


def make_token_access(settings: Settings, web: httpx.AsyncClient) -> TokenAccess | None:
    """By the settings; None without an issuer. Raises BadSettings."""
    if not settings.oauth_issuers:
        return None
    if not settings.mcp_api_key and settings.api_keys_file is None:
        raise BadSettings("OAUTH_ISSUERS needs a key as well, the operator's: set MCP_API_KEY.")
    base = base_url(settings)
    resources = tuple(base + path for path in settings.mcp_paths)
    rules = TokenRules(
        settings.oauth_audience or resources,
        settings.oauth_algorithms,
        frozenset(settings.oauth_scopes),
        settings.oauth_clock_skew,
    )
    claims = ClaimRules(
        settings.oauth_tenant,
        settings.oauth_tenant_claim,
        settings.oauth_role_claim,
        frozenset(settings.oauth_operator_roles),
        settings.oauth_email_claim,
        settings.oauth_scope_claim,
    )
    issuers = [Issuer(url, web) for url in settings.oauth_issuers]
    return TokenAccess(AccessTokens(issuers, rules, claims), base, settings.mcp_paths)


def make_sign_in(settings: Settings, access: TokenAccess | None, web: httpx.AsyncClient | None) -> IssuerSignIn | None:
    """For people who sign in to the pages; None where they only do with a key. Raises BadSettings."""
    if not settings.oauth_client_id:
        return None
    if not settings.oauth_issuers:
        raise BadSettings("OAUTH_CLIENT_ID needs OAUTH_ISSUERS: the first is where people sign in.")
    if access is None or web is None:
        return None
    callback = f"{base_url(settings)}/login/callback"
    return IssuerSignIn(access.tokens, web, settings.oauth_client_id, settings.oauth_client_secret, callback)


def identity_of(person: Person) -> Identity:
    return Identity(
        person.tenant,
        person.role,
        person.email or person.subject,
        person=person.name,
        credential=Credential.BEARER,
    )
