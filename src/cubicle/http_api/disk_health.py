"""GET /health/disk: how much space the host has left, for operators."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.http_api.models import DiskSpace
from cubicle.sandbox.free_space import FreeSpace


class DiskHealthRoutes:
    """For the operator: the table of routes asks for MCP_API_KEY, where there is any key."""

    def __init__(self, space: FreeSpace) -> None:
        self._space = space

    async def show(self, request: Request) -> Response:
        usage = await asyncio.to_thread(self._space.measure)
        since = self._space.short_since
        return JSONResponse(
            DiskSpace(
                enough=since is None,
                short_since=datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds") if since else None,
                free_bytes=usage.free,
                floor_bytes=usage.floor,
                total_bytes=usage.total,
                inodes_left=usage.inodes_left,
            )
        )
