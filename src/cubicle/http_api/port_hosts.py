"""Before everything else: a request under the name of a port never gets to the service's routes, nor the reverse."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from cubicle.core.port_names import BadHost, NoSuchPortName, origin_form, port_of
from cubicle.core.problem import Problem
from cubicle.fairness.fair_queue import LoopShare
from cubicle.http_api.error_page import fills_a_tab
from cubicle.http_api.fair_share import FairShare, stranger
from cubicle.http_api.port_pages import page, problem_body
from cubicle.http_api.uvicorn_http import TARGET

NAME = "cubicle.port"
"""Where, in the ASGI scope, the port is that the request is for."""
PATH_AND_QUERY = "cubicle.path-and-query"
"""And its target in origin form, byte for byte; ROOT_PATH has no say in it."""


class PortHosts:
    """ASGI middleware around all others. `domains` are those of ports, `own` names of the service beneath them."""

    def __init__(self, app: ASGIApp, ports: ASGIApp, domains: Sequence[str], own: Sequence[str] = ()) -> None:
        self._app = app
        self._ports = ports
        self._domains = domains
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        target = target_of(scope)
        try:
            name = port_of(hosts, target, self._domains, self._own)
        except BadHost as error:
            await refuse(scope, receive, send, Problem(400, str(error)))
        except NoSuchPortName as error:
            await refuse(scope, receive, send, Problem(404, str(error)))
        else:
            if name is None:
                await self._app(scope, receive, send)
            else:
                await self._ports({**scope, NAME: name, PATH_AND_QUERY: origin_form(target)}, receive, send)


class PortFairShare(FairShare):
    """A visitor of a port is a stranger until it is known whose port it is; nothing that it sends says otherwise."""

    def _share(self, scope: Scope) -> LoopShare:
        return stranger(scope)


def target_of(scope: Scope) -> bytes:
    """As the client wrote it."""
    if TARGET in scope:
        return bytes(scope[TARGET])
    root = str(scope.get("root_path", "")).encode()
    path = bytes(scope.get("raw_path") or scope["path"].encode()).removeprefix(root)
    query = scope.get("query_string", b"")
    return path + b"?" + query if query else path


async def refuse(scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
    """A problem as the whole answer: a page for a person. Of a WebSocket, to its handshake."""
    lines, body = problem_body(problem)
    if scope["type"] == "http" and fills_a_tab(Request(scope)):
        lines, body = page(
            "There is no such port" if problem.status == 404 else "This address cannot be right",
            [problem.detail, "Open the port from the workspace of its chat: the panel Ports has its link."],
        )
    await answer(scope, receive, send, problem.status, lines, body)


async def answer(
    scope: Scope, receive: Receive, send: Send, status: int, lines: list[tuple[bytes, bytes]], body: bytes
) -> None:
    kind = "http" if scope["type"] == "http" else "websocket.http"
    if scope["type"] == "websocket":
        await receive()
    await send({"type": f"{kind}.response.start", "status": status, "headers": lines})
    await send({"type": f"{kind}.response.body", "body": b"" if scope.get("method") == "HEAD" else body})
