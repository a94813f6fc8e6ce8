"""GET /health and GET /mcp-info."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle import __version__
from cubicle.core.caller import CHAT_HEADERS, EMAIL_HEADERS, NAME_HEADERS, SERVERS_HEADERS
from cubicle.core.chat_isolation import Isolation
from cubicle.http_api.models import HeaderInfo, Health, McpInfo, ToolInfo
from cubicle.settings import Settings
from cubicle.tools.registry import Registry

PROTOCOL_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")


class ServiceRoutes:
    """What the service says of itself."""

    def __init__(self, registry: Registry, settings: Settings, *, locked: bool) -> None:
        self._registry = registry
        self._settings = settings
        strict = settings.single_user_mode is Isolation.STRICT
        self._headers: list[HeaderInfo] = [
            _header(CHAT_HEADERS, strict, "The chat; each has a sandbox of its own"),
            {"name": "Authorization", "required": locked, "purpose": "Bearer key of the service"},
            _header(EMAIL_HEADERS, False, "E-mail of the user: own skills and tokens, logs"),
            _header(NAME_HEADERS, False, "Display name of the user, URL-encoded"),
            _header(SERVERS_HEADERS, False, "MCP servers for the coding sub-agent, separated by commas"),
            {"name": "Mcp-Session-Id", "required": False, "purpose": "Echo of the id that initialize answered with"},
            {"name": "Accept", "required": True, "purpose": "application/json, text/event-stream"},
            {"name": "Content-Type", "required": True, "purpose": "application/json"},
        ]

    async def health(self, _request: Request) -> Response:
        return JSONResponse(Health(status="healthy"))

    async def mcp_info(self, request: Request) -> Response:
        """What a person or a program needs to connect a client."""
        base = self._settings.public_base_url.rstrip("/") or str(request.base_url).rstrip("/")
        return JSONResponse(
            McpInfo(
                name="cubicle",
                version=__version__,
                protocol_versions=list(PROTOCOL_VERSIONS),
                endpoint=base + self._settings.mcp_paths[0],
                tools=[ToolInfo(name=tool.name, description=tool.description) for tool in self._registry.tools],
                headers=self._headers,
            )
        )


def _header(names: tuple[str, ...], required: bool, purpose: str) -> HeaderInfo:
    also = f" (also read from {', '.join(names[1:])})" if len(names) > 1 else ""
    return {"name": names[0], "required": required, "purpose": purpose + also}
