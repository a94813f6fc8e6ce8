"""GET /health/walls: which walls of the sandboxes hold, for operators."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cubicle.core import problem
from cubicle.core.chat import DEFAULT_TENANT
from cubicle.core.keys import KeyRing
from cubicle.http_api.caller import tenant
from cubicle.http_api.errors import Refusal
from cubicle.isolation.startup_check import Warden


class WallRoutes:
    """Asks for the operator's own key, MCP_API_KEY, where there is any: a customer's opens nothing here."""

    def __init__(self, warden: Warden, ring: KeyRing) -> None:
        self._warden = warden
        self._ring = ring

    def routes(self) -> list[Route]:
        return [Route("/health/walls", self.show)]

    async def show(self, request: Request) -> Response:
        if tenant(request, self._ring) != DEFAULT_TENANT:
            raise Refusal(problem.UNAUTHORIZED)
        proof = self._warden.proof
        if proof is None:
            return JSONResponse({"strength": "none", "holds": False, "attempts": 0, "findings": [], "checked_at": None})
        at = datetime.fromtimestamp(proof.at, UTC).isoformat(timespec="seconds")
        return JSONResponse({**proof.report.told(), "checked_at": at})
