"""GET /health/disk: how much space the host has left, for operators."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cubicle.core import problem
from cubicle.core.chat import DEFAULT_TENANT
from cubicle.core.keys import KeyRing
from cubicle.http_api.caller import tenant
from cubicle.http_api.errors import Refusal
from cubicle.sandbox.free_space import FreeSpace


class DiskRoutes:
    """Asks for the operator's own key, MCP_API_KEY, where there is any: a customer's opens nothing here."""

    def __init__(self, space: FreeSpace, ring: KeyRing) -> None:
        self._space = space
        self._ring = ring

    def routes(self) -> list[Route]:
        return [Route("/health/disk", self.show)]

    async def show(self, request: Request) -> Response:
        if tenant(request, self._ring) != DEFAULT_TENANT:
            raise Refusal(problem.UNAUTHORIZED)
        usage = await asyncio.to_thread(self._space.measure)
        since = self._space.short_since
        return JSONResponse(
            {
                "enough": since is None,
                "short_since": datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds") if since else None,
                "free_bytes": usage.free,
                "floor_bytes": usage.floor,
                "total_bytes": usage.total,
                "inodes_left": usage.inodes_left,
            }
        )
