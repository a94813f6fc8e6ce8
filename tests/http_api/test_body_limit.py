"""Bodies of routes that take none, or a small one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from cubicle.core.request_limits import MAX_BODY
from cubicle.http_api.body_limit import BodyLimit
from cubicle.http_api.errors import HANDLERS
from cubicle.http_api.route_table import RouteTable
from tests.support.service import serve

pytestmark = pytest.mark.anyio


async def size(request: Request) -> JSONResponse:
    return JSONResponse(len(await request.body()))


ROUTES = [Route(path, size, methods=["POST"]) for path in ("/login", "/api/uploads/chat/file", "/mcp")]
APP = Starlette(routes=ROUTES, middleware=[Middleware(BodyLimit, RouteTable())], exception_handlers=HANDLERS)


async def parts(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield bytes(1024)


@pytest.mark.parametrize(
    ("path", "kilobytes", "status"),
    [
        ("/login", MAX_BODY // 1024, 200),
        ("/login", MAX_BODY // 1024 + 1, 413),
        ("/api/uploads/chat/file", 200, 200),
        ("/mcp", 200, 200),
    ],
)
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_refused_however_it_is_sent(path, kilobytes, status, declared):
    body = bytes(kilobytes * 1024) if declared else parts(kilobytes)
    async with serve(APP) as url, httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
        assert (await client.post(path, content=body)).status_code == status
