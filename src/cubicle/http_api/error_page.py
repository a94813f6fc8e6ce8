"""An error as a page, for whoever opened an address in a browser's tab; programs get the problem as JSON."""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from cubicle.core.problem import ASLEEP, NO_SANDBOX, Problem
from cubicle.http_api.plain_pages import plain_page

_TITLES = {
    400: "This address cannot be right",
    403: "Not allowed",
    404: "There is nothing at this address",
    405: "This address is not for a browser",
    410: "No longer kept",
    413: "Too large",
    429: "Too many requests",
    501: "Not available here",
    503: "Not available now",
    507: "No room left",
}
_OF_TYPES = {ASLEEP: "This computer sleeps", NO_SANDBOX: "This chat has no computer yet"}
_UNMADE = "The model's first call, or an upload, makes one. Nothing is made by looking."


def fills_a_tab(request: Request) -> bool:
    """Whether a person is to see the answer. Browsers say what they load for, except over plain HTTP from afar."""
    asks_for_page = request.method == "GET" and "text/html" in request.headers.get("Accept", "")
    return asks_for_page and request.headers.get("Sec-Fetch-Dest", "document") in ("document", "iframe")


def error_page(request: Request, problem: Problem) -> Response:
    """The problem for a person."""
    detail = problem.more.get("reason") or (_UNMADE if problem.type == NO_SANDBOX else problem.detail)
    title = _OF_TYPES.get(problem.type) or _TITLES.get(problem.status) or "This did not work"
    way = f'<a href="{_way_to_root(request)}">Start page</a>'
    html = plain_page(title, f"<p>{escape(detail)}</p><p><small>Error {problem.status}</small></p><p>{way}</p>")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    headers = {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
    }
    return HTMLResponse(html, problem.status, {**dict(problem.headers), **headers})


def _way_to_root(request: Request) -> str:
    """Relative, so that it holds under any prefix of a proxy; counted where an encoded slash is still encoded."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    prefix = str(request.scope.get("root_path", "")).encode()
    own = raw[len(prefix) :] if prefix and raw.startswith(prefix) else raw
    return "../" * min(200, max(0, own.count(b"/") - 1)) or "./"
