"""POST /login: an API key becomes a cookie, so that a person can open the pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from cubicle.chat.authentication import LOGIN_COOKIE
from cubicle.chat.key_attempts import KeyAttempts, TooManyAttempts
from cubicle.chat.links import Links
from cubicle.core.cookies import cookie_name, cookie_path
from cubicle.core.signing import SignIn
from cubicle.http_api.audited import note_audit

_MAX_FORM = 8192
_USED = "This sign-in link does not work: it was used, has expired or was not copied whole. Ask for another one."
SignInPage = Callable[..., Response]


class Login:
    """Takes the form that the sign-in page posts."""

    def __init__(self, keys: KeyAttempts, links: Links, page: SignInPage) -> None:
        self._keys = keys
        self._links = links
        self._page = page

    async def post(self, request: Request) -> Response:
        async with request.form(max_files=0, max_fields=4, max_part_size=_MAX_FORM) as form:
            key, target = str(form.get("key", "")).strip(), str(form.get("next", ""))
            once = str(form.get("once", ""))
        if once and self._keys:
            who = await asyncio.to_thread(self._links.use_one_time, once)
            if who is None:
                return self._page(request, message=_USED, status=401)
            return self.let_in(request, who, target)
        try:
            found = self._keys.opens(key, request.client and request.client.host) if self._keys else None
        except TooManyAttempts as error:
            answer = self._page(request, message=str(error), status=429)
            answer.headers["Retry-After"] = str(error.seconds)
            return answer
        if self._keys and found is None:
            return self._page(request, message="That key opens nothing here.", status=401)
        return self.let_in(request, SignIn(found.tenant, found.role, found.id) if found else None, target)

    def let_in(self, request: Request, who: SignIn | None, target: str, up: str = ".") -> Response:
        """On to the page, with a cookie that says who it is; `up` is the way from here to the root of the service."""
        if who is not None:
            note_audit(request, tenant=who.tenant, user=who.user, key=who.key_id, role=who.role.value)
        secure, root = request.url.scheme == "https", str(request.scope.get("root_path", ""))
        led_on = RedirectResponse(f"{up}{inside(target)}", status_code=303)  # relative: true behind any prefix
        if who is not None:
            led_on.set_cookie(
                cookie_name(LOGIN_COOKIE, secure=secure, root=root),
                self._links.sign_in(who),
                max_age=2 * 86400,
                path=cookie_path(secure=secure, root=root),
                httponly=True,
                samesite="lax",
                secure=secure,
            )
        return led_on


def inside(target: str) -> str:
    """A path of this service; never another site."""
    if not target.startswith("/") or target.startswith(("//", "/\\")) or any(ord(c) < 32 for c in target):
        return "/"
    return quote(target, safe="/?&=%:@+,;~!$*'()-._")
