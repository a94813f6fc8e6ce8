"""POST /login: an API key becomes a cookie, so that a person can open the pages."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cubicle.chat.links import Links
from cubicle.http_api.access import LOGIN_COOKIE
from cubicle.rules.keys import KeyRing

_LONGEST_FORM = 8192
SignInPage = Callable[..., Response]


class Login:
    """Takes the form that the sign-in page posts."""

    def __init__(self, ring: KeyRing, links: Links, page: SignInPage) -> None:
        self._ring = ring
        self._links = links
        self._page = page

    def routes(self) -> list[Route]:
        return [Route("/login", self.post, methods=["POST"])]

    async def post(self, request: Request) -> Response:
        async with request.form(max_files=0, max_fields=4, max_part_size=_LONGEST_FORM) as form:
            key, target = str(form.get("key", "")).strip(), str(form.get("next", ""))
        tenant = self._ring.opens(key) if self._ring else None
        if self._ring and tenant is None:
            return self._page(request, message="That key opens nothing here.", status=401)
        root = str(request.scope.get("root_path", "")).rstrip("/")
        answer = RedirectResponse(f".{_inside(target)}", status_code=303)  # relative: true behind any prefix
        if tenant is not None:
            answer.set_cookie(
                LOGIN_COOKIE,
                self._links.sign_in(tenant),
                max_age=2 * 86400,
                path=root + "/",
                httponly=True,
                samesite="lax",
                secure=request.url.scheme == "https",
            )
        return answer


def _inside(target: str) -> str:
    """A path of this service; never another site."""
    if not target.startswith("/") or target.startswith(("//", "/\\")) or any(ord(c) < 32 for c in target):
        return "/admin"
    return quote(target, safe="/?&=%:@+,;~!$*'()-._")
