"""Every URL of the service, in the specification's order; nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.routing import BaseRoute, Route

from cubicle.http_api.info import Endpoint, health


def routes(mcp: Sequence[BaseRoute], mcp_info: Endpoint, more: Iterable[Sequence[BaseRoute]] = ()) -> list[BaseRoute]:
    """MCP first, then the plain addresses."""
    return [
        *mcp,
        Route("/health", health),
        Route("/mcp-info", mcp_info),
        *(route for group in more for route in group),
    ]
