"""The handlers of the pages: each answers with a shell of HTML that carries a few facts for its script."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cubicle.core import paths
from cubicle.core.chat import DEFAULT_TENANT, BadChatId, Chat
from cubicle.core.identity import Credential, Identity, LinkAccess
from cubicle.core.link_scope import Opens
from cubicle.core.text import one_line
from cubicle.http_api import plain_pages
from cubicle.http_api.assets import STATIC, AssetFiles, Assets
from cubicle.http_api.page_data import PageData, PageFacts
from cubicle.http_api.page_policy import page_policy, viewer_policy
from cubicle.http_api.plain_pages import NAME
from cubicle.http_api.urls import tail

RawBase = Callable[[Request], str]
"""From a request for a chat's page: the way from the root of the service to that chat's pictures for the viewers, such
as `raw/<capability>/`; empty when there is none. Raises BadChatId."""
IsThere = Callable[[Request], Awaitable[bool]]
"""Whether the chat has the file or folder that a preview's address names."""
Condition = Callable[[Request], str]
"""The state of the chat's sandbox: running, starting, stopped, failed, or none. Raises BadChatId."""

# The script takes the sentence away when it starts. A few seconds pass before it is seen: a slow script is no failure.
_SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1, interactive-widget=resizes-content">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="{static}icon.svg">
<style>
.unstarted {{ padding: 2rem 1rem; font: 1rem/1.5 sans-serif; animation: unseen 1ms 4s backwards !important }}
@keyframes unseen {{ from, to {{ visibility: hidden }} }}
</style>
<noscript><style>.unstarted {{ animation: none !important }}</style></noscript>
{links}
</head>
<body data-page="{data}">
<div id="app">
<main class="unstarted">
<h1>This page did not start</h1>
<p>Its script did not load, or failed. <a href="">Reload the page</a>. If that does not help, see whether the browser
lets JavaScript run, and whether the service can be reached.</p>
</main>
</div>
<script type="module" src="{script}" crossorigin></script>
</body>
</html>
"""


def _no_raw(request: Request) -> str:
    return ""


def _running(request: Request) -> str:
    return "running"


async def _always(request: Request) -> bool:
    return True


def _identity(request: Request) -> Identity:
    found = getattr(request.state, "identity", None)
    return found if isinstance(found, Identity) else Identity(DEFAULT_TENANT, credential=Credential.PUBLIC)


def root_of(request: Request) -> str:
    """The relative way from the address that the browser shows to the root of the service.

    It is counted on the raw path, where an encoded slash is still encoded, as it is for the browser. Relative
    ways hold under any prefix that a proxy puts in front, whether the service was told of it or not.
    """
    return "../" * (_own(request).count(b"/") - 1) or "./"


def _own(request: Request) -> bytes:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    prefix = str(request.scope.get("root_path", "")).encode()
    return raw[len(prefix) :] if prefix and raw.startswith(prefix) else raw


class Pages:
    """All pages of the service.

    `embedders` are the origins that may frame them, `frames` those that they may frame; `locked`: they ask for a key;
    `run_scripts`: HTML files of a model run their scripts without a click.
    """

    def __init__(
        self,
        *,
        embedders: Sequence[str] = (),
        raw_base: RawBase = _no_raw,
        is_there: IsThere = _always,
        condition: Condition = _running,
        locked: bool = True,
        run_scripts: bool = False,
        frames: str = "",
        issuer: str = "",
        static: Path = STATIC,
    ) -> None:
        self._assets = Assets(static)
        self._raw_base = raw_base
        self._is_there = is_there
        self._condition = condition
        self._locked = locked
        self._run_scripts = run_scripts
        self._issuer = issuer
        self._page_policy = page_policy(embedders, frames)
        self._card_policy = page_policy(embedders, frames, card=True)
        self._viewer_policy = viewer_policy(embedders)
        self._card_viewer_policy = viewer_policy(embedders, card=True)
        self.static = GZipMiddleware(AssetFiles(directory=self._assets.folder), minimum_size=1024)
        """The built assets."""

    async def home(self, request: Request) -> Response:
        who = _identity(request)
        return self._page(request, "home", "", {"operator": who.is_operator, "tenant": who.tenant})

    async def with_slash(self, request: Request) -> Response:
        """Ways in a page are relative: without the last slash they would all point one folder too high."""
        try:
            last = quote(Chat(request.path_params["chat"]).id, safe="")
        except BadChatId as error:
            return self._no_chat(error)
        query = request.url.query
        return RedirectResponse(f"./{last}/{'?' + query if query else ''}", status_code=308)

    async def terminal(self, request: Request) -> Response:
        return self._of_chat(request, "terminal", "Terminal")

    async def browser(self, request: Request) -> Response:
        return self._of_chat(request, "live", "Browser")

    async def replay(self, request: Request) -> Response:
        return self._of_chat(request, "timeline", "Replay")

    async def preview(self, request: Request) -> Response:
        """The workspace, with a file open when the address names one."""
        path = tail(request)
        try:
            paths.relative(path)
        except paths.BadPath as error:
            return self._answer(plain_pages.refusal("Not a file", str(error)), 400)
        name = paths.readable(path.rstrip("/").rsplit("/", 1)[-1])
        response = self._of_chat(request, "workspace", name or "Workspace", path=path)
        if response.status_code == 200 and path and not await self._is_there(request):
            response.status_code = 404  # the same page all the same: it waits for the file
        return response

    async def admin(self, request: Request) -> Response:
        who = _identity(request)
        return self._page(request, "admin", "Sandboxes", {"operator": who.is_operator, "tenant": who.tenant})

    async def login(self, request: Request) -> Response:
        once = request.query_params.get("once", "")
        if once:  # a form, not at once: whatever looks at links before people do would use it up
            target = request.query_params.get("next", "")
            return self._answer(plain_pages.one_time(once[:2000], target[:2000]), 200)
        return self.login_page(request)

    def login_page(self, request: Request, *, message: str = "", status: int = 200) -> Response:
        """Asks for the key, posted as `key` to /login with `next`; `message` says why the last try failed."""
        target = request.query_params.get("next", "")
        facts: PageFacts = {"next": target, "message": message, "locked": self._locked}
        return self._page(request, "login", "Sign in", facts, status)

    def asleep_page(self, request: Request, reason: str, way: str) -> Response:
        """For a tab that wants a file of a sandbox that sleeps: `way` wakes it and leads to the file."""
        path = paths.decoded(b"/".join(_own(request).split(b"/")[3:]))
        name = one_line(paths.readable(path.rstrip("/").rsplit("/", 1)[-1]), 80)
        label = f"Wake it and open {name}" if name else "Wake it"
        return self._answer(plain_pages.asleep(reason, way, label), 409)

    async def viewer(self, request: Request) -> Response:
        """The frame that parses hostile files: no facts, no cookies, an opaque origin."""
        response = self._page(request, "viewer", "Viewer")
        # It has nothing that the site around it could want: whoever asks may frame it, as cards do.
        in_card = request.query_params.get("card") == "1"
        response.headers["Content-Security-Policy"] = self._card_viewer_policy if in_card else self._viewer_policy
        response.headers["Cache-Control"] = "no-cache"
        return response

    def _of_chat(self, request: Request, page: str, title: str, *, path: str = "") -> Response:
        try:
            chat, raw = Chat(request.path_params["chat"]), self._raw_base(request)
            sandbox = self._condition(request)
        except BadChatId as error:
            return self._no_chat(error)
        who = _identity(request)
        facts: PageFacts = {
            "chat": chat.id,
            "path": path,
            "raw": raw,
            "sandbox": sandbox,
            "embed": request.query_params.get("embed") == "1" or who.scope.opens is Opens.FILE,
            "run": self._run_scripts,
            "view": who.access is LinkAccess.VIEW,
            "opens": who.scope.opens.value,
            "card": who.card,
            "locked": self._locked,
        }
        response = self._page(request, page, f"{title} · {chat.id}", facts)
        if who.card:
            response.headers["Content-Security-Policy"] = self._card_policy
        return response

    def _no_chat(self, error: BadChatId) -> Response:
        return self._answer(plain_pages.refusal("Not a chat", str(error)), 400)

    def _page(
        self,
        request: Request,
        page: str,
        title: str,
        facts: PageFacts | None = None,
        status: int = 200,
    ) -> Response:
        root = root_of(request)
        static = f"{root}static/"
        entry = self._assets.entry(page)
        data: PageData = {
            "root": root, "assets": static, "chat": "", "path": "", "raw": "", "sandbox": "", "embed": False,
            "run": False, "next": "", "message": "", "locked": True, "issuer": self._issuer, "view": False,
            "operator": False, "tenant": "", "opens": "chat", "card": False, "signed_in": _identity(request).signed_in,
            **(facts or {}),
        }  # fmt: skip
        links = [f'<link rel="stylesheet" href="{static}{escape(s)}" crossorigin>' for s in entry.styles]
        links += [f'<link rel="modulepreload" href="{static}{escape(p)}" crossorigin>' for p in entry.preloads]
        html = _SHELL.format(
            title=escape(f"{title} · {NAME}" if title else NAME),
            static=static,
            links="\n".join(links),
            data=escape(json.dumps(data, ensure_ascii=True)),
            script=f"{static}{escape(entry.script)}",
        )
        return self._answer(html, status)

    def _answer(self, html: str, status: int) -> Response:
        return HTMLResponse(
            html,
            status_code=status,
            headers={
                "Content-Security-Policy": self._page_policy,
                # The page can hold a capability: it is for one reader, once.
                "Cache-Control": "no-store",
                # Not no-referrer: a form would then post with the origin "null", which the service refuses.
                "Referrer-Policy": "same-origin",
                "X-Content-Type-Options": "nosniff",
                "Cross-Origin-Opener-Policy": "same-origin",
            },
        )
