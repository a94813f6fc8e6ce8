"""What the requests and answers of each handler of the table of routes hold, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cubicle.agents.sessions import Transcript
from cubicle.core.caller import CHAT_HEADERS, EMAIL_HEADERS
from cubicle.http_api import file_models, home_models, models, overview_models

JSON = "application/json"
HTML = "text/html"
TEXT = "text/plain"
ANY_TYPE = "*/*"
_FLAG = {"type": "string", "enum": ["0", "1"]}
_WAKE = {"wake": _FLAG}
_TENANT: dict[str, dict[str, Any]] = {"tenant": {"type": "string"}}
_TABLE: dict[str, dict[str, Any]] = {
    **_TENANT,
    "q": {"type": "string"},
    "state": {"type": "string", "enum": ["starting", "running", "stopped", "failed"]},
    "sort": {"type": "string", "enum": list(overview_models.SORTS)},
    "order": {"type": "string", "enum": ["asc", "desc"]},
    "offset": {"type": "integer", "minimum": 0},
    "limit": {"type": "integer", "minimum": 1, "maximum": 200},
}

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One status with the types that its body can have; the value is a model or a schema."""

    status: int
    bodies: Mapping[str, Any] = field(default_factory=dict)
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One handler. Errors as problems are documented by their status alone; every route can also give those of
    openapi.COMMON_ERRORS."""

    replies: tuple[Reply, ...]
    errors: tuple[int, ...] = ()
    query: Mapping[str, Schema] = field(default_factory=dict)
    headers: tuple[str, ...] = ()
    body: Mapping[str, Schema] = field(default_factory=dict)


def _json(model: Any, *errors: int, query: Mapping[str, Schema] | None = None) -> Operation:
    return Operation((Reply(200, {JSON: model}),), errors, query or {})


def _page(*more: Reply) -> Operation:
    """A page. A chat id that is none is refused by a page as well."""
    return Operation((Reply(200, {HTML: {}}), Reply(400, {HTML: {}}), *more))


def _redirect(status: int) -> Operation:
    return Operation((Reply(status, headers=("Location",)), Reply(400, {HTML: {}})))


_FILE_REPLIES = (
    Reply(206, {ANY_TYPE: {}}, ("Content-Range",)),
    Reply(303, headers=("Location",)),
    Reply(304),
    Reply(409, {HTML: {}}),
)
_FILE_ERRORS = (404, 409, 412, 416, 503)
_LISTING_OR_FILE = {"anyOf": [models.FolderListing, {"description": "The file, if it is of this type."}]}
_CALLER = {"chat_id": {"type": "string"}, "user_email": {"type": "string"}}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_BINARY: Schema = {"type": "string", "format": "binary"}
_FORM: Schema = {"type": "object", "properties": {"file": _BINARY}, "required": ["file"]}
_KEY_FORM: Schema = {
    "type": "object",
    "properties": {"key": {"type": "string", "maxLength": 200}, "next": {"type": "string", "maxLength": 200}},
    "required": ["key"],
}
_RPC: Schema = {
    "type": "object",
    "properties": {
        "jsonrpc": {"const": "2.0"},
        "id": {"type": ["integer", "string"]},
        "method": {"type": "string"},
        "params": {"type": "object"},
    },
    "required": ["jsonrpc", "method"],
}
_RPC_ANSWER: Schema = {"type": "object", "properties": {"jsonrpc": {"const": "2.0"}}, "required": ["jsonrpc"]}
_DEVTOOLS = Operation(
    (Reply(200, {JSON: {}, TEXT: {}}), Reply(404, {TEXT: {}}), Reply(405, {TEXT: {}}), Reply(500, {TEXT: {}})),
    (404, 405, 409, 502, 503),
)

OPERATIONS: dict[str, Operation] = {
    "prompt.get": Operation(
        (Reply(200, {TEXT: {}}, ("X-Public-Base-URL",)),),
        query=_CALLER,
        headers=(CHAT_HEADERS[0], EMAIL_HEADERS[0]),
    ),
    "skills.listed": Operation((Reply(200, {JSON: models.SkillList, TEXT: {}}),), query=_CALLER),
    "skills.mounts": Operation((Reply(200, {JSON: models.SkillMounts}),), query=_CALLER),
    "service.mcp_info": _json(models.McpInfo),
    "service.health": _json(models.Health),
    "resource.of_service": _json(models.ProtectedResource, 404),
    "resource.of_path": _json(models.ProtectedResource, 404),
    "disk.show": _json(models.DiskSpace),
    "isolation.show": _json(models.IsolationReport),
    "metrics.get": Operation((Reply(200, {TEXT: {}}),), query={"own": _FLAG}),
    "openapi.document": _json({"type": "object", "required": ["openapi", "info", "paths"]}),
    "openapi.page": Operation((Reply(200, {HTML: {}}),)),
    "uploads.listed": _json(models.UploadList, 409, 503, query=_WAKE),
    "uploads.nameless": Operation((), (400,)),
    "uploads.save": Operation(
        (Reply(201, {JSON: models.UploadedFile}),),
        (409, 503, 507),
        body={"application/octet-stream": _BINARY, "multipart/form-data": _FORM},
    ),
    "uploads.remove": Operation((Reply(204),), (404, 503, 507)),
    "archive.get": Operation((Reply(200, {"application/zip": _BINARY}), *_FILE_REPLIES), (404, 409, 503), _WAKE),
    "files.top": Operation((Reply(200, {JSON: models.FolderListing}), *_FILE_REPLIES), (409, 503), _WAKE),
    "files.get": Operation(
        (Reply(200, {JSON: _LISTING_OR_FILE, ANY_TYPE: {}}), *_FILE_REPLIES),
        _FILE_ERRORS,
        {**_WAKE, "download": _FLAG, "hidden": _FLAG},
        headers=("Range", "If-None-Match"),
    ),
    "file_edits.save": Operation(
        (Reply(200, {JSON: file_models.SavedFile}), Reply(201, {JSON: file_models.SavedFile})),
        (404, 409, 412, 428, 503, 507),
        headers=("If-Match", "If-None-Match"),
        body={"application/octet-stream": _BINARY},
    ),
    "file_edits.rename": _json(file_models.RenamedFile, 404, 409, 503, 507, query={"to": {"type": "string"}}),
    "file_edits.remove": Operation((Reply(204),), (404, 409, 503, 507), query={"recursive": _FLAG}),
    "file_search.get": Operation(
        (Reply(200, {"application/x-ndjson": {}}),),
        (400, 404, 409, 503),
        {**_WAKE, "q": {"type": "string"}, "in": {"type": "string", "enum": ["names", "contents"]}},
    ),
    "file_history.changes": _json(file_models.FileChanges, 400, 503, query={"since": {"type": "number", "minimum": 0}}),
    "file_history.versions": Operation(
        (Reply(200, {JSON: file_models.FileVersionList, ANY_TYPE: {}}),),
        (404, 409, 410, 503),
        {**_WAKE, "id": {"type": "string"}, "download": _FLAG},
    ),
    "file_views.tail": Operation((Reply(200, {"text/event-stream": {}}),), (404, 409, 503)),
    "file_views.pdf": Operation(
        (Reply(200, {"application/pdf": _BINARY}),), (404, 409, 422, 501, 503), {**_WAKE, "download": _FLAG}
    ),
    "pages.with_slash": _redirect(308),
    "pages.preview": _page(Reply(404, {HTML: {}}), Reply(303, headers=("Location",))),
    "raw.grant": _json(models.RawUrl, 404, 409, 503, query={**_WAKE, "scripts": _FLAG, "all": _FLAG}),
    "raw.get": Operation((Reply(200, {ANY_TYPE: {}}), *_FILE_REPLIES), (401, *_FILE_ERRORS), _WAKE),
    "browser.status": _json(models.BrowserStatus),
    "browser.start": _json(models.ProgramStarted, 404, 409, 503, 507, query={**_WAKE, "again": _FLAG}),
    "browser.json": _DEVTOOLS,
    "pages.browser": _page(),
    "terminal.status": _json(models.TerminalStatus),
    "terminal.start": _json(models.ProgramStarted, 404, 409, 503, query=_WAKE),
    "terminal.sessions": _json(models.SessionList, 409, 503),
    "terminal.transcript": _json(Transcript, 404, 409, 503, query={"after": {"type": "integer", "minimum": 0}}),
    "terminal.resume": _json(models.SessionResumed, 404, 409, 503),
    "terminal.processes": _json(models.ProcessList, 503),
    "terminal.kill": _json(models.ProcessKilled, 404, 409, 503),
    "pages.terminal": _page(),
    "activity.events": Operation((Reply(200, {"text/event-stream": {}}),), headers=("Last-Event-ID",)),
    "activity.earlier": _json(models.EarlierCalls, query={"before": {"type": "string"}}),
    "activity.picture": Operation((Reply(200, {"image/png": {}, "image/jpeg": {}}),), (404,)),
    "changes.get": _json(models.FileSides, 404, 409, 410, 413, 503),
    "undo.undo": _json(models.FileUndone, 404, 409, 410, 503, 507, query={"redo": _FLAG}),
    "replay.get": Operation((Reply(200, {HTML: {}}),)),
    "timeline.get": _json(models.Timeline, 400, query={"after": _COUNT, "since": _COUNT}),
    "timeline.newest": Operation((Reply(200, {"image/jpeg": _BINARY}),), (404,)),
    "timeline.frame": Operation((Reply(200, {"image/jpeg": _BINARY}),), (404,)),
    "pages.replay": _page(),
    "ports.listed": _json(models.PortOverview),
    "ports.events": Operation((Reply(200, {"text/event-stream": {}}),)),
    "ports.share": Operation(
        (Reply(201, {JSON: models.PortShared}),),
        (400, 403, 404),
        query={"hours": {"type": "number", "exclusiveMinimum": 0, "maximum": 720}},
    ),
    "ports.revoke": Operation((Reply(204),), (400, 404)),
    "start.start": _json(models.SandboxState, 404, 409, 503, query=_WAKE),
    "links.listed": _json(models.ChatLinkList),
    "links.make": Operation(
        (Reply(201, {JSON: models.ChatLink}),),
        (400, 409),
        query={
            "access": {"type": "string", "enum": ["view", "control"]},
            "hours": {"type": "number", "exclusiveMinimum": 0, "maximum": 8760},
            "label": {"type": "string"},
            "opens": {"type": "string", "enum": ["chat", "replay", "file"]},
            "path": {"type": "string"},
            **_TENANT,
        },
    ),
    "links.revoke": Operation((Reply(204),), (404,), query=_TENANT),
    "links.revoke_all": Operation((Reply(204),), query=_TENANT),
    "links.sign_in": Operation((Reply(201, {JSON: models.SignInLink}),), (400,)),
    "admin.listed": _json(models.SandboxList, query=_TENANT),
    "admin.stop": _json(models.SandboxStopped, 404, 503),
    "admin.remove": Operation((Reply(204),), (404, 503)),
    "overview.get": _json(overview_models.Overview, 400, 403, query=_TABLE),
    "overview.events": Operation((Reply(200, {"text/event-stream": {}}),), (400, 403), query=_TABLE),
    "webhooks.listed": _json(models.WebhookOverview, 503),
    "webhooks.retry": _json(
        models.WebhooksRetried, 404, 503, query={"id": {"type": "string"}, "receiver": {"type": "string"}}
    ),
    "pages.home": _page(),
    "home.get": _json(home_models.Home),
    "home.events": Operation((Reply(200, {"text/event-stream": {}}),)),
    "home.picture": Operation((Reply(200, {"image/jpeg": _BINARY}),), (404,), query=_TENANT),
    "home.connection": _json(home_models.Connection),
    "home.key": _json(home_models.ShownKey, 404),
    "home.demo": Operation((Reply(202, {JSON: home_models.DemoState}),)),
    "pages.login": _page(),
    "login.post": Operation(
        (Reply(303, headers=("Location",)), Reply(401, {HTML: {}}), Reply(429, {HTML: {}})),
        body={"application/x-www-form-urlencoded": _KEY_FORM},
    ),
    "issuer_login.begin": Operation(
        (Reply(303, headers=("Location",)), Reply(503, {HTML: {}})), (404,), {"next": {"type": "string"}}
    ),
    "issuer_login.finish": Operation(
        (Reply(303, headers=("Location",)), Reply(401, {HTML: {}})),
        (404,),
        {name: {"type": "string"} for name in ("code", "state", "iss", "error")},
    ),
    "issuer_login.out": Operation((Reply(200, {HTML: {}}), Reply(303, headers=("Location",)))),
    "pages.admin": _page(),
    "pages.viewer": _page(),
    "pages.static": Operation((Reply(200, {ANY_TYPE: {}}), Reply(206, {ANY_TYPE: {}}), Reply(304)), (404, 416)),
}
"""By the handler's name in the table. WebSockets have no place in OpenAPI."""

MCP_OPERATIONS: dict[str, Operation] = {
    "post": Operation(
        (
            Reply(200, {JSON: _RPC_ANSWER, "text/event-stream": {}}, ("Mcp-Session-Id",)),
            Reply(202),
            *(Reply(status, {JSON: _RPC_ANSWER}) for status in (400, 401, 403, 404, 408, 413, 415, 429)),
        ),
        headers=("Mcp-Session-Id", "MCP-Protocol-Version", CHAT_HEADERS[0], EMAIL_HEADERS[0]),
        body={JSON: _RPC},
    ),
    "delete": Operation(
        (Reply(204), *(Reply(status, {JSON: _RPC_ANSWER}) for status in (400, 401, 403, 404, 429))),
        headers=("Mcp-Session-Id", CHAT_HEADERS[0]),
    ),
}
