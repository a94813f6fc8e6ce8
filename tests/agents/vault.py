"""An MCP server that wants a credential, over either of MCP's HTTP transports; and the operator's file that names it."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

from tests.support.service import serve

SECRET = secrets.token_urlsafe(40)


@asynccontextmanager
async def vault(transport: str = "http") -> AsyncIterator[str]:
    """Its address."""
    server = MCPServer("vault")

    @server.tool()
    def open_vault(drawer: str) -> str:
        """Say what is in a drawer."""
        return f"In the drawer {drawer} is a golden egg."

    app = server.streamable_http_app() if transport == "http" else server.sse_app()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope["headers"]).get(b"authorization") == f"Bearer {SECRET}".encode():
            await app(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async with app.router.lifespan_context(app), serve(guarded) as url:
        yield f"{url}/{'mcp' if transport == 'http' else 'sse'}"


def registry(folder: Path, servers: dict[str, Any]) -> Path:
    path = folder / "servers.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path
