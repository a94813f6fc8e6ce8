"""GET /health/walls: which walls of the sandboxes hold, for operators."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.http_api.models import IsolationReport
from cubicle.isolation.startup_check import Warden


class WallRoutes:
    """For the operator: the table of routes asks for MCP_API_KEY, where there is any key."""

    def __init__(self, warden: Warden) -> None:
        self._warden = warden

    async def show(self, request: Request) -> Response:
        proof = self._warden.proof
        if proof is None:
            return JSONResponse(IsolationReport(strength="none", holds=False, attempts=0, findings=[], checked_at=None))
        at = datetime.fromtimestamp(proof.at, UTC).isoformat(timespec="seconds")
        return JSONResponse({**proof.report.told(), "checked_at": at})
