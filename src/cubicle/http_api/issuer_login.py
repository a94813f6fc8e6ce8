"""/login/oauth, /login/callback and /logout: a person signs in to the pages by the OAuth issuer, and out again."""

from __future__ import annotations

import time
from dataclasses import astuple
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cubicle.chat.authentication import LOGIN_COOKIE
from cubicle.chat.links import Links
from cubicle.core import signing
from cubicle.core.cookies import OURS, cookie_name, cookie_path
from cubicle.core.signing import SignIn
from cubicle.http_api.audited import note_audit
from cubicle.http_api.errors import refuse
from cubicle.http_api.login import Login, SignInPage, inside
from cubicle.http_api.plain_pages import ICON, NAME
from cubicle.oauth.sign_in import IssuerSignIn, PendingSignIn, SignInFailed

_PENDING_COOKIE = f"{OURS}sign-in"
_PENDING_SECONDS = 600
_MAX_TARGET = 1024
_NOT_SET = "People do not sign in by an issuer here: OAUTH_CLIENT_ID is not set."


_SIGNED_OUT = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>Signed out · {NAME}</title>
<link rel="icon" href="{ICON}"><meta http-equiv="refresh" content="0;url={{way}}"></head>
<body><h1>Signed out</h1><p><a href="{{way}}">Sign out at the sign-in service, too</a></p></body>
</html>
"""


def _page_on(way: str) -> Response:
    """A page that leads on to another site: browsers do not let the form of a page end in a redirect to one."""
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'none'; img-src data:; frame-ancestors 'none'",
    }
    return HTMLResponse(_SIGNED_OUT.format(way=escape(way)), headers=headers)


class IssuerLogin:
    """What a person's browser asks for on its way to the issuer and back."""

    def __init__(self, sign_in: IssuerSignIn | None, links: Links, login: Login, page: SignInPage) -> None:
        self._sign_in = sign_in
        self._links = links
        self._login = login
        self._page = page

    async def begin(self, request: Request) -> Response:
        """To the issuer. The cookie that is left behind ties the way back to this browser."""
        sign_in = self._required()
        target = inside(request.query_params.get("next", ""))
        pending = PendingSignIn.begin(target if len(target) <= _MAX_TARGET else inside(""))
        try:
            answer = RedirectResponse(await sign_in.url(pending), 303, {"Cache-Control": "no-store"})
        except SignInFailed as error:
            return self._page(request, message=str(error), status=503)
        expires = int(time.time()) + _PENDING_SECONDS
        self._set(request, answer, signing.pending(self._secret, astuple(pending), expires), _PENDING_SECONDS)
        return answer

    async def finish(self, request: Request) -> Response:
        """From the issuer, with a code."""
        sign_in = self._required()
        cookie = request.cookies.get(self._name(request, _PENDING_COOKIE), "")
        kept = signing.opened_pending(self._secret, cookie, time.time())
        pending = PendingSignIn(*kept) if kept is not None and len(kept) == 4 else None
        try:
            person = await sign_in.finish(pending, request.query_params)
        except SignInFailed as error:
            answer = self._page(request, message=str(error), status=401)
        else:
            assert pending is not None
            who = SignIn(person.tenant, person.role, user=person.email or person.subject, person=person.name)
            answer = self._login.let_in(request, who, pending.target, up="..")
            answer.headers["Cache-Control"] = "no-store"
        self._set(request, answer, "", 0)
        return answer

    async def out(self, request: Request) -> Response:
        """Forget who it is; who came by the issuer goes on to sign out there, too."""
        answer: Response
        who = self._links.signed_in(request.cookies.get(self._name(request, LOGIN_COOKIE), ""))
        way = None
        if who is not None:
            note_audit(request, tenant=who.tenant, user=who.user, key=who.key_id, role=who.role.value)
        if self._sign_in is not None and who is not None and who.person:
            way = await self._sign_in.sign_out_url(f"{self._links.base_url}/login")
        answer = _page_on(way) if way else RedirectResponse("./login", 303, {"Cache-Control": "no-store"})
        self._set(request, answer, "", 0, LOGIN_COOKIE)
        return answer

    @property
    def _secret(self) -> bytes:
        return self._links.signing("")

    def _required(self) -> IssuerSignIn:
        if self._sign_in is None:
            raise refuse(404, _NOT_SET)
        return self._sign_in

    @staticmethod
    def _name(request: Request, name: str) -> str:
        return cookie_name(name, secure=request.url.scheme == "https", root=str(request.scope.get("root_path", "")))

    def _set(self, request: Request, answer: Response, value: str, seconds: int, name: str = _PENDING_COOKIE) -> None:
        secure, root = request.url.scheme == "https", str(request.scope.get("root_path", ""))
        answer.set_cookie(
            self._name(request, name),
            value,
            max_age=seconds,
            path=cookie_path(secure=secure, root=root),
            httponly=True,
            samesite="lax",
            secure=secure,
        )
