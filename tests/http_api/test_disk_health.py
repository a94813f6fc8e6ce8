"""GET /health/disk is for the operator."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from cubicle.chat.authentication import Authentication
from cubicle.chat.key_attempts import KeyAttempts
from cubicle.core.keys import KeyRing
from cubicle.http_api.auth import AccessCheck
from cubicle.http_api.disk_health import DiskHealthRoutes
from cubicle.http_api.errors import HANDLERS, problem_of
from cubicle.http_api.route_table import RouteTable
from cubicle.machine.errors import NoSpace
from cubicle.sandbox.free_space import FreeSpace
from tests.support.service import refusing

RING = KeyRing.parse("operator-key", '{"customer-key": "acme"}')


def client(folder: Path, floor: int) -> httpx.AsyncClient:
    table = RouteTable()
    routes = table.bind(disk=DiskHealthRoutes(FreeSpace(folder, floor)))
    access = Middleware(AccessCheck, Authentication(KeyAttempts(RING, 0)), table, refusing)
    app = Starlette(routes=routes, middleware=[access], exception_handlers=HANDLERS)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


@pytest.mark.parametrize("key", [None, "wrong", "customer-key"])
async def test_nobody_else_sees_the_disk(key: str | None, tmp_path: Path) -> None:
    async with client(tmp_path, 0) as http:
        answer = await http.get("/health/disk", headers={"Authorization": f"Bearer {key}"} if key else {})
    assert answer.status_code == 401
    assert "free_bytes" not in answer.text


async def test_the_operator_sees_the_free_space_and_the_floor(tmp_path: Path) -> None:
    async with client(tmp_path, 4096) as http:
        told = (await http.get("/health/disk", headers={"Authorization": "Bearer operator-key"})).json()
    assert (told["enough"], told["short_since"], told["floor_bytes"]) == (True, None, 4096)
    assert 0 < told["free_bytes"] <= told["total_bytes"]


def test_too_little_space_is_told_with_a_time_to_try_again() -> None:
    problem = problem_of(NoSpace("The host is short of disk space."))
    assert (problem.status, problem.detail) == (503, "The host is short of disk space.")
    assert problem.headers == {"Retry-After": "60"}
