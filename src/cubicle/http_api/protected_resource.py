"""GET /.well-known/oauth-protected-resource: where the clients of each MCP path get their tokens (RFC 9728)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.chat.token_access import TokenAccess
from cubicle.http_api.errors import refuse
from cubicle.http_api.models import ProtectedResource
from cubicle.http_api.urls import tail

_NOT_HERE = "No OAuth issuer is set for this service, or MCP does not answer at that path."
_HEADERS = {"Cache-Control": "public, max-age=300"}


class ProtectedResourceRoutes:
    """The metadata of the service as an OAuth resource. It is public, and the same for everybody."""

    def __init__(self, access: TokenAccess | None, root_path: str = "") -> None:
        self._access = access
        self._root = root_path.rstrip("/")

    async def of_service(self, _request: Request) -> Response:
        """Clients that know no path are told of the first one."""
        if self._access is None:
            raise refuse(404, _NOT_HERE)
        return self._answer(self._access, self._access.mcp_paths[0])

    async def of_path(self, request: Request) -> Response:
        """The path may hold the prefix of a proxy: clients put the well-known part before the whole path."""
        path = f"/{tail(request)}"
        path = path.removeprefix(self._root) if self._root and path.startswith(f"{self._root}/") else path
        if self._access is None or path not in self._access.mcp_paths:
            raise refuse(404, _NOT_HERE)
        return self._answer(self._access, path)

    def _answer(self, access: TokenAccess, path: str) -> Response:
        metadata: ProtectedResource = {
            "resource": access.base_url + path,
            "authorization_servers": list(access.tokens.issuers),
            "bearer_methods_supported": ["header"],
            "resource_name": "Cubicle",
        }
        if access.tokens.rules.scopes:
            metadata["scopes_supported"] = sorted(access.tokens.rules.scopes)
        return JSONResponse(metadata, headers=_HEADERS)
