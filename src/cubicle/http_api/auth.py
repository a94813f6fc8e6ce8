"""Who may come in: a bearer key opens its tenant; a signed link, or its cookie, the chat it was made for."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from cubicle.chat.key_attempts import KeyTries, TooManyTries
from cubicle.chat.links import Links
from cubicle.core import caller, hosts
from cubicle.core import problem as problems
from cubicle.core.caller import Headers
from cubicle.core.chat import DEFAULT_TENANT, BadChatId, Chat
from cubicle.core.chat_isolation import Isolation
from cubicle.core.problem import Problem
from cubicle.http_api.credential import Credential, note_credential
from cubicle.http_api.errors import response
from cubicle.http_api.fair_share import charge_to
from cubicle.http_api.urls import route_path, unsigned
from cubicle.log import note

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SignIn = Callable[[Request, str], Response]
"""Makes the page (401) that asks a person for the key; the text says why what the person has does not do."""

NOT_ALLOWED = 4401
LOGIN_COOKIE = "cubicle-login"
_DEAD_LINK = (
    "This link does not work: it has expired or was not copied whole. "
    "Ask for a new one in the chat, or sign in with the key."
)
_OPEN = ("/static", "/login", "/raw")
"""Need no key, with all beneath them: what says nothing of a chat, and what carries a capability in its own path."""
_MAX_LINK_COOKIES = 100
"""Each is checked by its signature; a browser keeps no more of one site."""
_MAX_PARAMETERS = 100
_HEALTH = "/health"
"""Needs no key either; what lies beneath it is the operator's."""
_OF_A_CHAT = {"files": 1, "preview": 1, "browser": 1, "terminal": 1, "api/uploads": 2, "api/chats": 2}
"""First part of the path to the place of the chat id in it."""
_SHOWN = re.compile(r"/(preview|files)/.*|/(browser|terminal)/[^/]*/?", re.DOTALL)
"""What a person opens in a tab; the rest is for programs, which keep no cookies."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a request may enter, and by what."""

    tenant: str
    chat: Chat | None = None
    link: str = ""
    anew: bool = False
    """The link came in the address, and is to be kept in a cookie."""
    stays: bool = False
    """Or not: the browser is known to another tenant, whose chat of the same id would become this one. The link stays
    in the address, and the page sends it along."""
    signed_in: bool = False
    open: bool = False
    """Nobody was asked who it is."""
    credential: Credential = Credential.COOKIE


class Access:
    """ASGI middleware for every route but MCP's own.

    Leaves in `scope["state"]` the tenant and the isolation mode; `signed_in`, the tenant whose key a person showed;
    `link` and `opened`, the key of a link and the one chat that it opens; the credential (cubicle.http_api.credential).
    """

    def __init__(
        self,
        app: App,
        keys: KeyTries,
        links: Links,
        passed: tuple[str, ...],
        allowed_hosts: tuple[str, ...],
        sign_in: SignIn,
        isolation: Isolation = Isolation.LENIENT,
    ) -> None:
        self._app = app
        self._keys = keys
        self._links = links
        self._passed = frozenset(passed)
        self._hosts = allowed_hosts
        self._sign_in = sign_in
        self._isolation = isolation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or route_path(scope) in self._passed:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope["headers"])
        if not hosts.host_is_known(self._hosts, headers.get("Host")):
            await self._refuse(scope, receive, send, Problem(403, hosts.UNKNOWN_HOST))
            return
        try:
            entry = self._entry(scope, headers)
        except TooManyTries as error:
            await self._refuse(scope, receive, send, problems.too_many_tries(error.seconds))
            return
        if entry is None:
            await self._refuse(scope, receive, send, problems.UNAUTHORIZED)
            return
        state = scope.setdefault("state", {})
        state.update(tenant=entry.tenant, isolation=self._isolation, link=entry.link, opened=entry.chat)
        state["signed_in"] = entry.tenant if entry.signed_in else None
        note_credential(state, entry.credential)
        if not entry.open:
            charge_to(scope, entry.tenant, _chat_id(route_path(scope)) or "")
            # Whoever has just a link names no user: it opens a chat to anybody who holds it.
            state["user"] = caller.email(headers) if entry.chat is None else None
            note(tenant=entry.tenant, **({"user": state["user"]} if state["user"] else {}))
        app = self._app if entry.stays else _led_on(scope, headers) or self._app
        await app(scope, receive, _with_cookie(send, scope, entry.link) if entry.anew else send)

    def _entry(self, scope: Scope, headers: Headers) -> _Entry | None:
        path = route_path(scope)
        if path == _HEALTH or any(path == prefix or path.startswith(prefix + "/") for prefix in _OPEN):
            return _Entry(DEFAULT_TENANT, open=True, credential=Credential.PUBLIC)
        refused: TooManyTries | None = None
        try:
            tenant = self._keys.tenant(headers.get("Authorization"), (scope.get("client") or ("",))[0])
        except TooManyTries as error:
            tenant, refused = None, error
        if tenant is not None:
            return _Entry(tenant, credential=Credential.BEARER if self._keys else Credential.NONE_NEEDED)
        entry = self._without_key(scope, path, headers)
        if entry is None and refused is not None:
            raise refused
        return entry

    def _without_key(self, scope: Scope, path: str, headers: Headers) -> _Entry | None:
        """By a sign-in or a link; what else the request shows does not matter."""
        chat_id = _chat_id(path)
        known = self._by_cookie(chat_id, _cookies(headers))
        sent = _sent_key(scope)
        if sent and chat_id is not None and (chat := self._links.opened(chat_id, sent)):
            other = known is not None and known.tenant != chat.tenant
            return _Entry(chat.tenant, chat, sent, anew=not other, stays=other, credential=Credential.LINK)
        return known

    def _by_cookie(self, chat_id: str | None, cookies: dict[str, str]) -> _Entry | None:
        if signed_in := self._links.signed_in(cookies.get(LOGIN_COOKIE, "")):
            return _Entry(signed_in, signed_in=True)
        keys = [value for name, value in cookies.items() if name.startswith("cubicle-")] if chat_id is not None else []
        for value in keys[:_MAX_LINK_COOKIES]:
            if chat := self._links.opened(str(chat_id), value):
                return _Entry(chat.tenant, chat, value)
        return None

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
        if scope["type"] == "http":
            asks_for_page = scope["method"] == "GET" and "text/html" in (Headers(scope["headers"]).get("Accept") or "")
            if problem.status == 401 and asks_for_page:
                request = Request(scope)
                await self._sign_in(request, "" if unsigned(request) is None else _DEAD_LINK)(scope, receive, send)
            else:
                await response(problem)(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": NOT_ALLOWED, "reason": problem.title})


def _led_on(scope: Scope, headers: Headers) -> App | None:
    """The way on to the same address without a link's signature, for a tab: it would stay in view and in the history.

    Only for a browser that says it fills a tab: in a frame of another site the cookie would not come along, and a
    program has none. Over plain HTTP from afar browsers do not say so; there the page takes it out of the address.
    """
    if scope["type"] != "http" or scope["method"] != "GET" or headers.get("Sec-Fetch-Dest") != "document":
        return None
    way = unsigned(Request(scope)) if _SHOWN.fullmatch(route_path(scope)) else None
    return None if way is None else RedirectResponse(way, 303, {"Cache-Control": "no-store"})


def _chat_id(path: str) -> str | None:
    """The chat that an address belongs to, if it belongs to one."""
    parts = path.strip("/").split("/")
    place = _OF_A_CHAT.get("/".join(parts[:2]) if parts[0] == "api" else parts[0])
    if place is None or len(parts) <= place:
        return None
    try:
        return Chat(parts[place]).id
    except BadChatId:
        return None


def _sent_key(scope: Scope) -> str:
    """The link's key in the query, of the first hundred parameters."""
    query: bytes = scope.get("query_string", b"")
    if b"key=" not in query:
        return ""
    first = "&".join(query.decode("latin-1").split("&", _MAX_PARAMETERS)[:_MAX_PARAMETERS])
    return parse_qs(first).get("key", [""])[0]


def _cookies(headers: Headers) -> dict[str, str]:
    """Cookies by name, the first of each. The service's own need no unquoting."""
    jar: dict[str, str] = {}
    for header in headers.all("Cookie"):
        for pair in header.split(";"):
            name, _, value = pair.partition("=")
            jar.setdefault(name.strip(), value.strip())
    return jar


def _with_cookie(send: Send, scope: Scope, key: str) -> Send:
    """The answer to a signed visit carries the signature on, so that the next click needs none while it is valid."""
    chat_id = _chat_id(route_path(scope)) or ""
    path = (scope.get("root_path") or "") + "/"
    secure = "; Secure" if scope.get("scheme") in ("https", "wss") else ""
    left = int(key.partition(".")[0]) - int(time.time())
    cookie = f"cubicle-{Chat(chat_id).digest[:12]}={key}; Path={path}; HttpOnly; SameSite=Lax; Max-Age={left}{secure}"

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), (b"set-cookie", cookie.encode())]}
        await send(message)

    return sending
