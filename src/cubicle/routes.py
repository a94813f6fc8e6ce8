"""Every URL of the service, in the specification's order; nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route

from cubicle.http_api.service import Endpoint, health


def routes(mcp: Sequence[BaseRoute], mcp_info: Endpoint, *groups: Sequence[BaseRoute]) -> list[BaseRoute]:
    """MCP first, then the plain addresses of section 4.4, then the pages."""
    return [
        *mcp,
        Route("/mcp-info", mcp_info),
        Route("/health", health),
        *(route for group in groups for route in group),
    ]
