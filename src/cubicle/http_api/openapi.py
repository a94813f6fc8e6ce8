"""OpenAPI."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response


class OpenApiRoutes:
    def __init__(self, table, embedders=()) -> None:
        pass

    async def document(self, request: Request) -> Response:
        return JSONResponse({})

    async def page(self, request: Request) -> Response:
        return JSONResponse({})
