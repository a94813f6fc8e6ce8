"""The middleware that lets requests in, by the table of routes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from cubicle.chat.access_watch import AccessOver, AccessWatch
from cubicle.chat.authentication import Authentication, Refused, Shown, Who
from cubicle.core import problem as problems
from cubicle.core.caller import Headers
from cubicle.core.chat import Chat
from cubicle.core.chat_isolation import Isolation
from cubicle.core.cookies import OURS, cookie_name, cookie_path
from cubicle.core.identity import Identity
from cubicle.core.personal_chats import may_enter
from cubicle.core.problem import Problem
from cubicle.http_api.credential import note_credential
from cubicle.http_api.errors import response, response_to
from cubicle.http_api.fair_share import charge_to
from cubicle.http_api.route_table import RouteTable
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
_ENDED = "The key, link or sign-in has ended."
_DEAD_LINK = (
    "This link does not work: it has expired or was not copied whole. "
    "Ask for a new one in the chat, or sign in with the key."
)


class Answering:
    """Sends, and knows whether the answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        self.begun = True
        await self._send(message)


class AccessCheck:
    """ASGI middleware for every route but MCP's own, whose handler asks the same function.

    Leaves in `scope["state"]` the identity, and of it the tenant and user; the isolation mode; `signed_in`, the tenant
    whose key a person showed; `link` and `opened`, the key of a link and the one chat that it opens; the credential
    (cubicle.http_api.credential).
    """

    def __init__(
        self,
        app: App,
        authentication: Authentication,
        table: RouteTable,
        sign_in: SignIn,
        isolation: Isolation = Isolation.LENIENT,
        watch: AccessWatch | None = None,
    ) -> None:
        self._app = app
        self._authentication = authentication
        self._table = table
        self._sign_in = sign_in
        self._isolation = isolation
        self._watch = watch or AccessWatch(authentication)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._table.is_mcp(route_path(scope)):
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        headers, who, chat_id = Headers(scope["headers"]), self._table.who(path), self._table.chat_id(path)
        shown = Shown(
            headers,
            (scope.get("client") or ("",))[0],
            scope.get("query_string", b""),
            chat_id,
            secure=_is_secure(scope),
            root=scope.get("root_path") or "",
            path=path,
        )
        try:
            identity = await self._authentication.admit(shown, who)
            if not may_enter(identity, self._table.named_chat(path) or ""):
                raise Refused(problems.ANOTHERS_CHAT)
        except Refused as refused:
            await self._refuse(scope, receive, send, refused.problem)
            return
        await self._note(scope, identity, chat_id or "")
        if who in (Who.OPERATOR, Who.METRICS) and not identity.is_operator:
            await response(problems.UNAUTHORIZED)(scope, receive, send)
            return
        app = self._app if identity.stays else self._led_on(scope, headers) or self._app
        answering = Answering(_with_cookie(send, scope, identity) if identity.anew else send)
        try:
            await self._watch.run(lambda: app(scope, receive, answering), identity)
        except AccessOver:
            await self._cut_off(scope, receive, answering)

    async def _note(self, scope: Scope, identity: Identity, chat_id: str) -> None:
        state = scope.setdefault("state", {})
        state.update(tenant=identity.tenant, isolation=self._isolation, link=identity.link, opened=identity.chat)
        state["signed_in"] = identity.tenant if identity.signed_in else None
        state["identity"] = identity
        note_credential(state, identity.credential)
        if not identity.public:
            await charge_to(scope, identity.tenant, chat_id)
            state["user"] = identity.user
            note(**identity.log_fields)

    async def _cut_off(self, scope: Scope, receive: Receive, answering: Answering) -> None:
        """What let the request in ended while it went on. An answer that has begun is not finished."""
        if not answering.begun:
            await self._refuse(scope, receive, answering, problems.UNAUTHORIZED)
        elif scope["type"] == "websocket":
            with suppress(RuntimeError):  # it is closed already
                await answering({"type": "websocket.close", "code": NOT_ALLOWED, "reason": _ENDED})

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            asks_for_page = scope["method"] == "GET" and "text/html" in (Headers(scope["headers"]).get("Accept") or "")
            if problem.status == 401 and asks_for_page:
                await self._sign_in(request, "" if unsigned(request) is None else _DEAD_LINK)(scope, receive, send)
            else:
                await response_to(request, problem)(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": NOT_ALLOWED, "reason": problem.title})

    def _led_on(self, scope: Scope, headers: Headers) -> App | None:
        """The way on to the same URL without a link's signature, for a tab: it would stay in view and in the history.

        Only for a browser that says it fills a tab: in a frame of another site the cookie would not come along, and a
        program has none. Over plain HTTP from afar browsers do not say so; there the page takes it out of the URL.
        """
        if scope["type"] != "http" or scope["method"] != "GET" or headers.get("Sec-Fetch-Dest") != "document":
            return None
        way = unsigned(Request(scope)) if self._table.is_in_a_tab(route_path(scope)) else None
        return None if way is None else RedirectResponse(way, 303, {"Cache-Control": "no-store"})


def _is_secure(scope: Scope) -> bool:
    return scope.get("scheme") in ("https", "wss")


def _with_cookie(send: Send, scope: Scope, identity: Identity) -> Send:
    """The answer to a signed visit carries the signature on, so that the next click needs none while it is valid."""
    secure, root = _is_secure(scope), scope.get("root_path") or ""
    key = identity.link
    left = int(key.partition(".")[0]) - int(time.time())
    name = cookie_name(f"{OURS}{Chat(identity.chat.id if identity.chat else '').digest[:12]}", secure=secure, root=root)
    rest = f"HttpOnly; SameSite=Lax; Max-Age={left}{'; Secure' if secure else ''}"
    cookie = f"{name}={key}; Path={cookie_path(secure=secure, root=root)}; {rest}"

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), (b"set-cookie", cookie.encode())]}
        await send(message)

    return sending
