"""GET /health and GET /mcp-info."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle import __version__
from cubicle.core.caller import CHAT_HEADERS, EMAIL_HEADERS, NAME_HEADERS, SERVERS_HEADERS
from cubicle.core.chat_isolation import Isolation
from cubicle.core.keys import KeyRing
from cubicle.http_api.caller import tenant
from cubicle.settings import Settings
from cubicle.tools.registry import Registry

PROTOCOL_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")

Endpoint = Callable[[Request], Awaitable[Response]]


async def health(_request: Request) -> Response:
    return JSONResponse({"status": "healthy"})


def mcp_info(registry: Registry, settings: Settings, ring: KeyRing) -> Endpoint:
    """What a person or a program needs to connect a client."""
    headers = [
        _header(CHAT_HEADERS, settings.single_user_mode is Isolation.STRICT, "The chat; each has a sandbox of its own"),
        {"name": "Authorization", "required": bool(ring), "purpose": "Bearer key of the service"},
        _header(EMAIL_HEADERS, False, "E-mail of the user: own skills and tokens, logs"),
        _header(NAME_HEADERS, False, "Display name of the user, URL-encoded"),
        _header(SERVERS_HEADERS, False, "MCP servers for the coding sub-agent, separated by commas"),
        {"name": "Mcp-Session-Id", "required": False, "purpose": "Echo of the id that initialize answered with"},
        {"name": "Accept", "required": True, "purpose": "application/json, text/event-stream"},
        {"name": "Content-Type", "required": True, "purpose": "application/json"},
    ]

    async def endpoint(request: Request) -> Response:
        tenant(request, ring)
        base = settings.public_base_url.rstrip("/") or str(request.base_url).rstrip("/")
        return JSONResponse(
            {
                "name": "cubicle",
                "version": __version__,
                "protocol_versions": PROTOCOL_VERSIONS,
                "endpoint": base + settings.mcp_paths[0],
                "tools": [{"name": tool.name, "description": tool.description} for tool in registry.tools],
                "headers": headers,
            }
        )

    return endpoint


def _header(names: tuple[str, ...], required: bool, purpose: str) -> dict[str, object]:
    also = f" (also read from {', '.join(names[1:])})" if len(names) > 1 else ""
    return {"name": names[0], "required": required, "purpose": purpose + also}
