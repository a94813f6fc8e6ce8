"""What the audit log is told of HTTP requests and WebSockets, by the table of routes; and what is not begun without it.

MCP's tools tell of themselves (cubicle.tools.audited); what is refused to a request is told of here for MCP, too.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from starlette.requests import HTTPConnection
from starlette.routing import compile_path

from cubicle.audit.audit import Audit, AuditUnavailable
from cubicle.chat.key_attempts import network_of
from cubicle.core.chat import Chat
from cubicle.core.close_codes import NOT_ALLOWED, TRY_LATER
from cubicle.core.identity import Credential, Identity
from cubicle.core.problem import Problem
from cubicle.http_api.errors import response
from cubicle.http_api.route_table import refusal
from cubicle.http_api.routes import ELSEWHERE, ROW, ROWS, WEBSOCKET, Row
from cubicle.http_api.urls import route_path

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

EVENTS = {
    "uploads.save": "upload",
    "uploads.remove": "delete",
    "file_edits.save": "edit",
    "file_edits.rename": "edit",
    "file_edits.remove": "delete",
    "file_history.versions": "download",
    "file_views.tail": "download",
    "file_views.pdf": "download",
    "files.get": "download",
    "archive.get": "download",
    "raw.get": "download",
    "replay.get": "download",
    "terminal.socket": "terminal",
    "terminal.start": "terminal",
    "terminal.resume": "terminal",
    "terminal.kill": "terminal",
    "browser.page_socket": "browser",
    "browser.browser_socket": "browser",
    "browser.own_socket": "browser",
    "browser.json": "browser",
    "browser.start": "browser",
    "live_view.socket": "browser",
    "ports.forward": "port",
    "ports.share": "link",
    "ports.revoke": "link",
    "links.make": "link",
    "links.revoke": "link",
    "links.revoke_all": "link",
    "links.sign_in": "link",
    "raw.grant": "link",
    "login.post": "sign_in",
    "issuer_login.finish": "sign_in",
    "issuer_login.out": "sign_out",
    "start.start": "sandbox",
    "home.demo": "sandbox",
    "home.key": "key",
    "admin.stop": "sandbox",
    "admin.remove": "sandbox",
    "undo.undo": "undo",
    "webhooks.retry": "webhook",
}
"""The kind of record that each handler of the table of routes makes."""
NO_EVENTS = frozenset({"uploads.nameless", "pages.static"})
"""Handlers of other methods than GET that change nothing."""
_QUIET_JSON = frozenset({"", "/list", "/version", "/protocol"})
_AUDITED = [
    (compile_path(path)[0], frozenset(row.methods.split()))
    for row in ROWS
    if row.handler in EVENTS
    for path in row.paths
]
_NOTES = "audit"
_CHAT = "chat"
"""Where, in the state of a request, `chat_of` leaves its chat."""


def note_audit(connection: HTTPConnection, **fields: Any) -> None:
    """Have the record of this request say these, too. `skip=True`: it makes none."""
    connection.scope.setdefault("state", {}).setdefault(_NOTES, {}).update(fields)


class AuditedRequests:
    """ASGI middleware, around the one that decides who may come in."""

    def __init__(self, app: App, audit: Audit) -> None:
        self._app = app
        self._audit = audit
        self._refusals = audit.repeats(self._refused)
        self._links = audit.repeats(self._link_used)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http" and self._audit.keeps:
                await self._http(scope, receive, send)
            elif scope["type"] == "websocket" and self._audit.keeps:
                await self._websocket(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            # A connection that is kept alive keeps the scope of its last request: the chat may be removed meanwhile.
            scope.get("state", {}).pop(_CHAT, None)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, size, began = 0, 0, time.monotonic()

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status, size = message["status"], _length(message.get("headers", ()))
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            seconds = round(time.monotonic() - began, 3)
            self._ended(scope, status, {"status": status, "size": size, "seconds": seconds})

    def _ended(self, scope: Scope, status: int, fields: dict[str, Any]) -> None:
        if ELSEWHERE in scope:
            return
        row, identity = scope.get(ROW), _identity(scope)
        self._note_link(scope, identity)
        if status in (401, 403) or (status == 429 and (identity is None or identity.public)):
            self._refuse(scope, status)
            return
        if status == 503 and self._audit.error:
            return  # it was not begun; to tell of it would fill the memory
        notes = scope.get("state", {}).get(_NOTES, {})
        if isinstance(row, Row) and not notes.get("skip") and _is_event(scope, row):
            outcome = "done" if 0 < status < 400 else "refused" if status in (409, 429, 503) else "failed"
            self._record(scope, row, {"outcome": outcome, **fields, **notes})

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        attached, code, began = False, 0, time.monotonic()

        async def sending(message: Message) -> None:
            nonlocal attached, code
            row = scope.get(ROW)
            if message["type"] == "websocket.accept" and isinstance(row, Row) and not attached:
                attached = refusal(scope, row) is None
                self._record(scope, row, {"outcome": "attached" if attached else "refused"})
            elif message["type"] == "websocket.close":
                code = message.get("code", 0)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            row = scope.get(ROW)
            if ELSEWHERE not in scope:
                self._note_link(scope, _identity(scope))
            if attached and isinstance(row, Row):
                seconds = round(time.monotonic() - began, 3)
                self._record(scope, row, {"outcome": "detached", "code": code, "seconds": seconds})
            elif code == NOT_ALLOWED and ELSEWHERE not in scope:
                self._refuse(scope, 401)

    def _record(self, scope: Scope, row: Row, fields: dict[str, Any]) -> None:
        kind, identity = EVENTS.get(row.handler), _identity(scope)
        if kind is None:
            return
        said: dict[str, Any] = {"what": row.handler}
        if identity is not None and identity.chat is not None:
            said |= {"access": identity.access.value, "link": self._audit.digest("link", identity.link)}
        if kind not in ("sign_in", "sign_out"):
            said["path"] = self._audit.digest("path", route_path(scope))
        if "sha256" in fields:
            fields["content"] = self._audit.digest("content", bytes.fromhex(fields.pop("sha256")))
        self._audit.record(kind, {**said, "address": _address(scope), **fields}, chat=_chat(scope), identity=identity)

    def _refuse(self, scope: Scope, status: int) -> None:
        row = scope.get(ROW)
        what = row.handler if isinstance(row, Row) else ""
        about = (_chat(scope), _identity(scope))
        wide = (("many", str(status), ""), (None, None))
        self._refusals.add((network_of(_address(scope)), str(status), what), about, wide=wide)

    def _refused(self, key: tuple[str, ...], about: tuple[Chat | None, Identity | None], count: int) -> None:
        network, status, what = key
        fields = {"what": what, "status": int(status), "network": network, "count": count}
        self._audit.record("refused", fields, chat=about[0], identity=about[1])

    def _note_link(self, scope: Scope, identity: Identity | None) -> None:
        """A link was opened: its token came in the URL."""
        if identity is not None and identity.link and identity.credential is Credential.LINK:
            key = (self._audit.digest("link", identity.link), network_of(_address(scope)))
            about = (identity.chat, identity)
            self._links.add(key, about, wide=((key[0], "many"), about))

    def _link_used(self, key: tuple[str, ...], about: tuple[Chat | None, Identity | None], count: int) -> None:
        chat, identity = about
        fields: dict[str, Any] = {"link": key[0], "network": key[1], "count": count}
        if identity is not None:
            fields["access"] = identity.access.value
        self._audit.record("link_use", fields, chat=chat, identity=identity)


class AuditRequired:
    """ASGI middleware behind the access check: while the audit log cannot be written, what it would tell of is 503."""

    def __init__(self, app: App, audit: Audit) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._audit.error and scope["type"] in ("http", "websocket") and _is_audited(scope):
            try:
                self._audit.require()
            except AuditUnavailable as no:
                await _refuse(scope, receive, send, no)
                return
        await self._app(scope, receive, send)


async def _refuse(scope: Scope, receive: Receive, send: Send, no: AuditUnavailable) -> None:
    if scope["type"] == "http":
        problem = Problem(503, str(no), {"Retry-After": str(no.seconds)})
        await response(problem)(scope, receive, send)
        return
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": TRY_LATER, "reason": "The audit log cannot be written."})


def _is_audited(scope: Scope) -> bool:
    path, method = route_path(scope), scope.get("method", WEBSOCKET)
    return any(method in methods and pattern.match(path) for pattern, methods in _AUDITED)


def _is_event(scope: Scope, row: Row) -> bool:
    if scope["method"] == "HEAD":
        return False
    return row.handler != "browser.json" or row.path.partition("/json")[2] not in _QUIET_JSON


def _identity(scope: Scope) -> Identity | None:
    found = scope.get("state", {}).get("identity")
    return found if isinstance(found, Identity) else None


def _chat(scope: Scope) -> Chat | None:
    found = scope.get("state", {}).get(_CHAT)
    return found if isinstance(found, Chat) else None


def _address(scope: Mapping[str, Any]) -> str:
    return str((scope.get("client") or ("",))[0])


def _length(headers: Any) -> int:
    for name, value in headers:
        if name.lower() == b"content-length" and value.isdigit():
            return int(value[:15])
    return 0
