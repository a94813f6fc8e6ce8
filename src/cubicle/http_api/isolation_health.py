"""GET /health/walls: which layers of the sandboxes' isolation hold, for operators."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.http_api.models import IsolationReport
from cubicle.isolation.startup_check import StartupCheck


class IsolationHealthRoutes:
    """For the operator: the table of routes asks for MCP_API_KEY, where there is any key."""

    def __init__(self, startup_check: StartupCheck) -> None:
        self._startup_check = startup_check

    async def show(self, request: Request) -> Response:
        proof = self._startup_check.proof
        if proof is None:
            return JSONResponse(IsolationReport(strength="none", holds=False, attempts=0, findings=[], checked_at=None))
        at = datetime.fromtimestamp(proof.at, UTC).isoformat(timespec="seconds")
        return JSONResponse({**proof.report.told(), "checked_at": at})
