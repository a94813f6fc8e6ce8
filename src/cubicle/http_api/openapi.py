"""GET /openapi.json and GET /docs: the table of routes as an OpenAPI 3.1 document, and as a page."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from cubicle import __version__
from cubicle.chat.authentication import LOGIN_COOKIE, Who
from cubicle.core.problem import MEDIA_TYPE
from cubicle.http_api import models, openapi_page
from cubicle.http_api.operations import HTML, MCP_OPERATIONS, OPERATIONS, Operation, Reply, Schema
from cubicle.http_api.page_policy import page_policy
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.routes import ANY_METHOD, MCP, WEBSOCKET, Row

COMMON_ERRORS = (400, 401, 403, 413, 429)
"""Every route can give these: a request that cannot be read, nobody let in, a foreign page, too much."""
_REF = "#/components/schemas/{model}"
_PROBLEM = {"$ref": _REF.format(model=models.ProblemDetails.__name__)}
_CHAT_ID: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_:@-][A-Za-z0-9._:@-]{0,127}$"}
_TOKEN: Schema = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$"}
_TEXT: Schema = {"type": "string", "minLength": 1}
_KINDS: dict[str, Schema] = {"token": _TOKEN, "number": {"type": "integer", "minimum": 0}}
_SECURITY: dict[Who, list[dict[str, list[str]]]] = {
    Who.ANYBODY: [],
    Who.CAPABILITY: [],
    Who.BEARER: [{"key": []}],
    Who.KEY: [{"key": []}, {"signIn": []}],
    Who.OPERATOR: [{"key": []}, {"signIn": []}],
    Who.METRICS: [{"key": []}, {"signIn": []}],
    Who.CHAT: [{"key": []}, {"signIn": []}, {"link": []}],
}
_SCHEMES = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "MCP_API_KEY, or a key of API_KEYS_FILE; METRICS_TOKEN for /metrics.",
    },
    "signIn": {
        "type": "apiKey",
        "in": "cookie",
        "name": LOGIN_COOKIE,
        "description": "What POST /login leaves. On HTTPS `__Host-` is before its name.",
    },
    "link": {"type": "apiKey", "in": "query", "name": "key", "description": "The signature of a link of the chat."},
}
_INFO = {
    "title": "Cubicle",
    "version": __version__,
    "description": "A computer of its own for every chat. A service without a key asks for none.",
}


class OpenApiRoutes:
    """Both are made once, when the first client asks."""

    def __init__(self, table: RouteTable, embedders: Sequence[str] = ()) -> None:
        self._table = table
        self._policy = page_policy(embedders)
        self._made: tuple[bytes, str] | None = None

    async def document(self, _request: Request) -> Response:
        return Response((await self._both())[0], media_type="application/json")

    async def page(self, _request: Request) -> Response:
        return HTMLResponse((await self._both())[1], headers={"Content-Security-Policy": self._policy})

    async def _both(self) -> tuple[bytes, str]:
        if self._made is None:
            self._made = await asyncio.to_thread(self._make)
        return self._made

    def _make(self) -> tuple[bytes, str]:
        made = document(self._table)
        return json.dumps(made, ensure_ascii=False).encode(), openapi_page.html(made)


def document(table: RouteTable) -> dict[str, Any]:
    """The whole document. KeyError when a handler of the table has no operation."""
    paths: dict[str, dict[str, Any]] = {}
    sockets = []
    found = _Models()
    for row in table.rows:
        if row.methods == WEBSOCKET:
            sockets.append({"path": row.template, **_about(row)})
            continue
        template = f"{row.template}/{{path}}" if row.mount else row.template
        for method, operation in _operations(row):
            paths.setdefault(template, {})[method] = _described(row, template, operation, found)
    return {
        "openapi": "3.1.0",
        "info": _INFO,
        "servers": [{"url": "."}],
        "paths": paths,
        "components": {"schemas": found.schemas(), "securitySchemes": _SCHEMES},
        "x-websockets": sockets,
    }


def _operations(row: Row) -> Iterable[tuple[str, Operation]]:
    if row.handler == MCP.handler:
        return MCP_OPERATIONS.items()
    methods = ["get"] if row.methods == ANY_METHOD else row.methods.lower().split()
    return [(method, OPERATIONS[row.handler]) for method in methods]


def _about(row: Row) -> dict[str, Any]:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", row.does)
    summary = re.split(r"(?<=\.) ", plain, maxsplit=1)[0]
    return {
        "summary": summary,
        "description": plain,
        "security": _SECURITY[row.who],
        "x-who": row.who.value,
        "x-chat-id": row.chat.value,
        "x-sandbox-use": row.use.value,
    }


def _described(row: Row, template: str, operation: Operation, found: _Models) -> dict[str, Any]:
    described = {
        **_about(row),
        "parameters": list(_parameters(row, template, operation)),
        "responses": _responses(row, operation, found),
    }
    if operation.body:
        content = {media: {"schema": schema} for media, schema in operation.body.items()}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _parameters(row: Row, template: str, operation: Operation) -> Iterator[dict[str, Any]]:
    kinds = dict(re.findall(r"\{(\w+):(\w+)\}", row.path))
    for name in re.findall(r"\{(\w+)\}", template):
        schema = _CHAT_ID if name == "chat" else _KINDS.get(kinds.get(name, ""), _TEXT)
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    for name, schema in operation.query.items():
        yield {"name": name, "in": "query", "required": False, "schema": schema}
    for name in operation.headers:
        yield {"name": name, "in": "header", "required": False, "schema": {"type": "string"}}


def _responses(row: Row, operation: Operation, found: _Models) -> dict[str, Any]:
    """By status: the replies of the handler, and the errors, which are problems."""
    replies = {reply.status: _reply(reply, found) for reply in operation.replies}
    if row.handler == MCP.handler:
        return {str(status): replies[status] for status in sorted(replies)}
    for status in {*operation.errors, *COMMON_ERRORS}:
        reply = replies.setdefault(status, {"description": HTTPStatus(status).phrase})
        reply.setdefault("content", {})[MEDIA_TYPE] = {"schema": _PROBLEM}
    # A browser without a key gets the page that asks for it.
    replies[401]["content"].setdefault(HTML, {})
    return {str(status): replies[status] for status in sorted(replies)}


def _reply(reply: Reply, found: _Models) -> dict[str, Any]:
    described: dict[str, Any] = {"description": HTTPStatus(reply.status).phrase}
    if reply.headers:
        described["headers"] = {name: {"schema": {"type": "string"}} for name in reply.headers}
    if reply.bodies:
        described["content"] = {media: found.content(model) for media, model in reply.bodies.items()}
    return described


class _Models:
    """The models that the answers name, by name."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {models.ProblemDetails.__name__: models.ProblemDetails}

    def content(self, model: Any) -> dict[str, Any]:
        return {"schema": schema} if (schema := self._schema(model)) else {}

    def _schema(self, model: Any) -> Any:
        """A reference to a model; a schema as it is, with the models in it."""
        if isinstance(model, type):
            self._found[model.__name__] = model
            return {"$ref": _REF.format(model=model.__name__)}
        if isinstance(model, Mapping):
            return {name: self._schema(value) for name, value in model.items()}
        return [self._schema(value) for value in model] if isinstance(model, list) else model

    def schemas(self) -> dict[str, Any]:
        adapters = [(name, "serialization", TypeAdapter(model)) for name, model in self._found.items()]
        _, definitions = TypeAdapter.json_schemas(adapters, ref_template=_REF)  # type: ignore[arg-type]
        schemas: dict[str, Any] = definitions["$defs"]
        return dict(sorted(schemas.items()))
