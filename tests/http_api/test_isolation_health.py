"""GET /health/walls is for the operator."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from cubicle.chat.authentication import Authentication
from cubicle.chat.key_attempts import KeyAttempts
from cubicle.core.keys import KeyRing
from cubicle.http_api.auth import AccessCheck
from cubicle.http_api.errors import HANDLERS
from cubicle.http_api.isolation_health import IsolationHealthRoutes
from cubicle.http_api.route_table import RouteTable
from cubicle.isolation.runner import Finding, ProbeVerdict, Report, Strength
from cubicle.isolation.startup_check import IsolationReport, StartupCheck
from cubicle.settings import Settings
from tests.support.service import refusing

REPORT = Report(Strength.GVISOR, (Finding("mounts", "mount a file system", ProbeVerdict.HOLDS),))


async def nothing() -> Report:
    raise AssertionError("not tried here")


def client(ring: KeyRing, proof: IsolationReport | None) -> httpx.AsyncClient:
    startup_check = StartupCheck(Settings(driver="oci"), nothing)
    startup_check.proof = proof
    table = RouteTable()
    access = Middleware(AccessCheck, Authentication(KeyAttempts(ring, 0)), table, refusing)
    app = Starlette(
        routes=table.bind(isolation=IsolationHealthRoutes(startup_check)),
        middleware=[access],
        exception_handlers=HANDLERS,
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


RING = KeyRing.parse("operator-key", '{"customer-key": "acme"}')


@pytest.mark.parametrize("key", [None, "wrong", "customer-key"])
async def test_nobody_else_sees_the_walls(key: str | None) -> None:
    async with client(RING, IsolationReport(REPORT, 0)) as http:
        answer = await http.get("/health/walls", headers={"Authorization": f"Bearer {key}"} if key else {})
    assert answer.status_code == 401
    assert "gVisor" not in answer.text


async def test_the_operator_sees_what_held_and_when() -> None:
    async with client(RING, IsolationReport(REPORT, 0)) as http:
        answer = await http.get("/health/walls", headers={"Authorization": "Bearer operator-key"})
    told = answer.json()
    assert (told["strength"], told["holds"], told["attempts"]) == ("gVisor", True, 1)
    assert told["checked_at"] == "1970-01-01T00:00:00+00:00"
    assert told["findings"][0]["verdict"] == "holds"


async def test_walls_that_nobody_tried_do_not_hold() -> None:
    async with client(KeyRing.parse(), None) as http:
        told = (await http.get("/health/walls")).json()
    assert (told["holds"], told["checked_at"]) == (False, None)
