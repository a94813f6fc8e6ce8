"""Every URL of the service, in the order of the specification: the one table.

The router, the middleware, the OpenAPI document, the table of docs/http.md (`make docs`) and the access tests read it.
The first row that fits a request answers it. What a request and its answer hold: operations.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cubicle.chat.authentication import Who
from cubicle.files.browse import ARCHIVE

HEALTH = "/health"
WEBSOCKET = "WS"
ANY_METHOD = "*"
ROW = "cubicle.route"
"""Where the router leaves the row, in the ASGI scope."""
ELSEWHERE = "cubicle.elsewhere"
"""There, for a request that another member of the service answers, and tells of."""


class Use(StrEnum):
    """Which requests use a chat's sandbox, and which only look at it.

    What runs by itself in the service (the egress proxy, the agents' gateway, the upkeep of skills and README.md, the
    disk watchdog) does so beside a use or without the fleet, and is no use either.
    """

    LOOKS = "looks"
    """Starts nothing, and the idle time goes on. Reads of files wake the sandbox only with `wake=1` in the query."""
    USES = "uses"
    """Keeps the sandbox up for as long as it lasts, once it got through; starts none that was stopped."""
    WAKES = "wakes"
    """Makes or wakes the sandbox, and keeps it up. The two starts of pages only look for one with `wake=0`."""
    ENDS = "ends"
    """Stops or removes it."""


class ChatIn(StrEnum):
    """Where a request names its chat."""

    NOWHERE = "–"
    PATH = "path"
    HEADER = "header"
    QUERY = "header, query"
    CAPABILITY = "capability"
    DEMO = "the person's demo"


@dataclass(frozen=True, slots=True)
class Row:
    """One URL with the methods that one handler answers."""

    methods: str
    """Separated by blanks; a GET route answers HEAD too."""
    path: str
    """As Starlette writes it."""
    handler: str
    """Group and attribute: app.py says which object a group is."""
    who: Who
    use: Use
    does: str
    """For docs/http.md; the first sentence is the summary of the OpenAPI document."""
    chat: ChatIn = ChatIn.NOWHERE
    slash: bool = False
    """The same URL with a slash behind it is answered too."""
    reads_files: bool = False
    """A sandbox that is stopped is 409, and `wake=1` in the query wakes it."""
    in_a_tab: bool = False
    """A person opens it in a tab, which is led on to the URL without a link's signature. Programs keep no cookies."""
    own_body_limit: bool = False
    """The handler counts the body; 64 KB elsewhere."""
    view: bool | None = None
    """Whether a link that only lets one look opens it; unsaid: only what is read by GET and changes nothing."""
    mount: bool = False
    """An application that answers everything beneath the path, by all methods."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, f"{self.path}/") if self.slash else (self.path,)

    @property
    def for_viewers(self) -> bool:
        """Whether a link of the chat that only lets one look opens it."""
        if self.who is not Who.CHAT:
            return False
        return self.view if self.view is not None else self.methods == "GET" and self.use is Use.LOOKS

    @property
    def template(self) -> str:
        """The path with the parameters' names only."""
        return re.sub(r"\{(\w+):\w+\}", r"{\1}", self.path)

    @property
    def literal(self) -> str:
        """What comes before the first parameter, without a slash at its end."""
        return self.path.partition("{")[0].rstrip("/")

    @property
    def chat_segment(self) -> int:
        """The number of the chat id's segment in the path; the first is 1."""
        return self.path.split("/").index("{chat}")

    @property
    def segments_before_path(self) -> int:
        """How many segments come before `{path}`, or are there at all."""
        return self.path.partition("/{path")[0].count("/")


def row_of(scope: Mapping[str, Any]) -> Row:
    """The row of the route that answers this request."""
    row: Row = scope[ROW]
    return row


_ANYBODY, _CAPABILITY, _BEARER, _KEY = Who.ANYBODY, Who.CAPABILITY, Who.BEARER, Who.KEY
_OPERATOR, _METRICS, _CHAT = Who.OPERATOR, Who.METRICS, Who.CHAT
_LOOKS, _USES, _WAKES, _ENDS = Use.LOOKS, Use.USES, Use.WAKES, Use.ENDS


def _of_chat(
    methods: str,
    path: str,
    handler: str,
    use: Use,
    does: str,
    *,
    slash: bool = False,
    reads_files: bool = False,
    in_a_tab: bool = False,
    own_body_limit: bool = False,
    view: bool | None = None,
) -> Row:
    """A URL with the chat id in it, which a link of that chat opens."""
    return Row(
        methods, path, handler, _CHAT, use, does, ChatIn.PATH, slash, reads_files, in_a_tab, own_body_limit, view
    )


MCP = Row(
    ANY_METHOD, "/mcp", "mcp.endpoint", _BEARER, _WAKES,
    "MCP, by POST. `MCP_PATHS` names more paths. Which methods wake the sandbox: [below](#looking-is-not-using).",
    ChatIn.HEADER, own_body_limit=True,
)  # fmt: skip

_SERVICE = (
    Row("GET", "/system-prompt", "prompt.get", _KEY, _LOOKS,
        "The system prompt of a chat as text. The headers of MCP win over the query `chat_id`, `user_email`.",
        ChatIn.QUERY),
    Row("GET", "/skill-list", "skills.listed", _KEY, _LOOKS, "The skills of a user.", ChatIn.QUERY),
    Row("GET", "/skill-mounts", "skills.mounts", _KEY, _LOOKS,
        "Where the user's own skills are in the sandbox.", ChatIn.QUERY),
    Row("GET", "/mcp-info", "service.mcp_info", _KEY, _LOOKS,
        "What a client needs to connect: name, version, protocol versions, endpoint, tools, headers."),
    Row("GET", HEALTH, "service.health", _ANYBODY, _LOOKS, 'Whether the service answers: `{"status":"healthy"}`.'),
    Row("GET", "/.well-known/oauth-protected-resource", "resource.of_service", _ANYBODY, _LOOKS,
        "Where MCP clients get access tokens ([oauth.md](oauth.md)). 404 without `OAUTH_ISSUERS`."),
    Row("GET", "/.well-known/oauth-protected-resource/{path:anything}", "resource.of_path", _ANYBODY, _LOOKS,
        "The same for one MCP path."),
    Row("GET", "/health/disk", "disk.show", _OPERATOR, _LOOKS,
        "The free space of the host. With the floor (`MIN_FREE_MB`), and since when there is too little."),
    Row("GET", "/health/walls", "isolation.show", _OPERATOR, _LOOKS,
        "Which layers of the isolation hold, by the last check."),
    Row("GET", "/metrics", "metrics.get", _METRICS, _LOOKS,
        "What the service counts of itself, for Prometheus ([metrics.md](metrics.md))."),
    Row("GET", "/openapi.json", "openapi.document", _KEY, _LOOKS, "This table as an OpenAPI 3.1 document."),
    Row("GET", "/docs", "openapi.page", _KEY, _LOOKS, "The same as a page."),
)  # fmt: skip

_FILES = (
    _of_chat("GET", "/api/uploads/{chat}", "uploads.listed", _LOOKS,
             "The uploads of a chat. `{files: [...]}`, with `complete: false` when more than 100,000 files and folders "
             "are there.", slash=True, reads_files=True, own_body_limit=True),
    _of_chat("POST PUT", "/api/uploads/{chat}", "uploads.nameless", _LOOKS,
             "400: the URL lacks the file's name.", own_body_limit=True),
    _of_chat("POST PUT", "/api/uploads/{chat}/{path:anything}", "uploads.save", _WAKES,
             "Uploads a file: raw body, or a form with the field `file`. 201 `{filename, path, size, sha256, uri, "
             "mimeType}`. The file appears whole or not at all; over `MAX_UPLOAD_MB` 413; given up with 400 when "
             "nothing has come for five minutes. Sub-folders are part of the name.", own_body_limit=True),
    _of_chat("DELETE", "/api/uploads/{chat}/{path:anything}", "uploads.remove", _WAKES,
             "Deletes an upload. 204; folders that become empty are deleted too.", own_body_limit=True),
    _of_chat("GET", f"/files/{{chat}}/{ARCHIVE}", "archive.get", _LOOKS,
             "Outputs, uploads and workspace as a zip, made while it is sent. Of the workspace no dot-folders (`.git`) "
             "and no caches (`node_modules`). 404 for an unknown chat.", reads_files=True, in_a_tab=True),
    _of_chat("GET", "/files/{chat}", "files.top", _LOOKS,
             "The folders of a chat, as JSON.", reads_files=True, in_a_tab=True),
    _of_chat("GET", "/files/{chat}/{path:anything}", "files.get", _LOOKS,
             "The file, with Range and ETag; `?download=1` to save it. A folder: JSON, at most 10,000 entries, "
             "`complete: true` when these are all and all could be read; an empty list for an unknown chat. "
             "What a browser could run is served so that it cannot act as you.", reads_files=True, in_a_tab=True),
    _of_chat("PUT", "/api/files/{chat}/{path:anything}", "file_edits.save", _WAKES,
             "Saves a text file of at most 8 MB. `If-Match` names the version (ETag) that it replaces: 412 if the file "
             "has changed since; `If-None-Match: *` for a new file; 428 without either. `{path, size, etag, id}`.",
             own_body_limit=True),
    _of_chat("POST", "/api/files/{chat}/{path:anything}", "file_edits.rename", _WAKES,
             "Renames a file or folder to the path `to`, in the same root. 409 if something has that name.",
             own_body_limit=True),
    _of_chat("DELETE", "/api/files/{chat}/{path:anything}", "file_edits.remove", _WAKES,
             "Deletes a file or an empty folder; with `recursive=1` a folder and all that is in it. 204.",
             own_body_limit=True),
    _of_chat("GET", "/preview/{chat}", "pages.with_slash", _LOOKS,
             "Redirects to the same URL with a slash.", in_a_tab=True),
    _of_chat("GET", "/preview/{chat}/{path:anything}", "pages.preview", _LOOKS,
             "The workspace, with the file open that the URL names. For a file that is not there yet the same page "
             "with 404: the workspace waits for the file and shows it when it comes (the bare viewer of `?embed=1` "
             "does not).", in_a_tab=True),
    _of_chat("POST", "/api/chats/{chat}/raw/{path:anything}", "raw.grant", _LOOKS,
             "Makes the capability for an untrusted page in a frame ([pages.md](pages.md#pages-that-a-model-made)).",
             reads_files=True, view=True),
    Row("GET", "/raw/{capability}/{path:anything}", "raw.get", _CAPABILITY, _LOOKS,
        "A file of an untrusted page, for frames ([pages.md](pages.md#pages-that-a-model-made)).",
        ChatIn.CAPABILITY, reads_files=True),
)  # fmt: skip


def _devtools(question: str, use: Use, does: str) -> Row:
    return _of_chat("GET PUT", f"/browser/{{chat}}/json{question}", "browser.json", use, does, slash=True)


_BROWSER = (
    _of_chat("GET", "/browser/{chat}/status", "browser.status", _LOOKS,
             "Whether the browser runs, and its pages ([live.md](live.md))."),
    _of_chat("POST", "/browser/{chat}/start", "browser.start", _WAKES,
             "Starts the browser. With `wake=0` 409 unless it runs already; with `again=1` besides, one that ended is "
             "started again, in a sandbox that is up.", view=True),
    _devtools("", _LOOKS, "DevTools: the targets."),
    _devtools("/list", _LOOKS, "DevTools: the targets."),
    _devtools("/version", _LOOKS, "DevTools: the browser's version and endpoint."),
    _devtools("/protocol", _LOOKS, "DevTools: the protocol."),
    _devtools("/new", _USES, "DevTools: opens the URL in the query. A browser must send PUT."),
    _devtools("/activate/{page:token}", _USES, "DevTools: shows a page. A browser must send PUT."),
    _devtools("/close/{page:token}", _USES, "DevTools: closes a page. A browser must send PUT."),
    _of_chat(WEBSOCKET, "/browser/{chat}/devtools/page/{page}", "browser.page_socket", _USES, "DevTools of a page."),
    _of_chat(WEBSOCKET, "/browser/{chat}/devtools/browser/{page}", "browser.browser_socket", _USES,
             "DevTools of the browser."),
    _of_chat(WEBSOCKET, "/browser/{chat}", "browser.own_socket", _USES,
             "DevTools of the browser, for clients that are given one URL only.", slash=True),
    _of_chat(WEBSOCKET, "/browser/{chat}/live", "live_view.socket", _USES,
             "The live view ([live-browser.md](live-browser.md)). A view link controls nothing in it.", view=True),
    _of_chat("GET", "/browser/{chat}", "pages.with_slash", _LOOKS,
             "Redirects to the same URL with a slash.", in_a_tab=True),
    _of_chat("GET", "/browser/{chat}/", "pages.browser", _LOOKS,
             "The page of the live browser ([pages.md](pages.md)).", in_a_tab=True),
)  # fmt: skip

_TERMINAL = (
    _of_chat("GET", "/terminal/{chat}/status", "terminal.status", _LOOKS, "Whether the terminal runs."),
    _of_chat("POST", "/terminal/{chat}/start-ttyd", "terminal.start", _WAKES, "Starts the terminal.", view=True),
    _of_chat(WEBSOCKET, "/terminal/{chat}/ws", "terminal.socket", _USES,
             "The terminal (the protocol of ttyd). What a view link types is dropped.", view=True),
    _of_chat("GET", "/terminal/{chat}/sessions", "terminal.sessions", _LOOKS,
             "The saved sessions of coding agents."),
    _of_chat("GET", "/terminal/{chat}/sessions/{session:token}", "terminal.transcript", _LOOKS,
             "A part of one saved session. `?after=` is the `next` of the part before."),
    _of_chat("POST", "/terminal/{chat}/sessions/{session:token}/resume", "terminal.resume", _WAKES,
             "Opens a saved session in the terminal."),
    _of_chat("GET", "/terminal/{chat}/processes", "terminal.processes", _LOOKS, "The coding agents that run."),
    _of_chat("POST", "/terminal/{chat}/processes/{pid:number}/kill", "terminal.kill", _USES, "Kills a coding agent."),
    _of_chat("GET", "/terminal/{chat}", "pages.with_slash", _LOOKS,
             "Redirects to the same URL with a slash.", in_a_tab=True),
    _of_chat("GET", "/terminal/{chat}/", "pages.terminal", _LOOKS,
             "The page of the terminal ([pages.md](pages.md)).", in_a_tab=True),
)  # fmt: skip

_OWN = (
    _of_chat("GET", "/api/chats/{chat}/events", "activity.events", _LOOKS,
             "The chat's tool calls as they happen, server-sent events."),
    _of_chat("GET", "/api/chats/{chat}/calls", "activity.earlier", _LOOKS,
             "The calls before the call or note `before`, as events: the latest 300 of them, as the journal has them."),
    _of_chat("GET", "/api/chats/{chat}/pictures/{picture:token}", "activity.picture", _LOOKS,
             "A picture that a call answered with, by its SHA-256."),
    _of_chat("POST", "/api/chats/{chat}/start", "start.start", _WAKES,
             'Makes or wakes the sandbox. `{sandbox: "running"}` once it is up.', view=True),
    _of_chat("GET", "/api/chats/{chat}/calls/{call:token}/change", "changes.get", _LOOKS,
             "Both sides of what a call of `create_file` or `str_replace` changed, as far as they are kept."),
    _of_chat("POST", "/api/chats/{chat}/calls/{call:token}/undo", "undo.undo", _WAKES,
             "Takes back what a call of `create_file` or `str_replace` wrote; `redo=1` makes it again. 409 if the file "
             "has changed since, 410 if what it replaced is no longer kept ([pages.md](pages.md))."),
    _of_chat("GET", "/api/chats/{chat}/replay", "replay.get", _LOOKS,
             "The journal of a chat as one HTML file that replays it, to be saved. It needs no service "
             "([journal.md](journal.md))."),
    _of_chat("GET", "/api/chats/{chat}/timeline", "timeline.get", _LOOKS,
             "What was done in a chat, in few words, 500 entries at a time: `after` is the `next` of the part before. "
             "With the last part come the pictures of its browser, those taken after `since` (in milliseconds) "
             "([replay.md](replay.md))."),
    _of_chat("GET", "/api/chats/{chat}/frames/newest", "timeline.newest", _LOOKS,
             "The last picture of the browser that was taken for the replay."),
    _of_chat("GET", "/api/chats/{chat}/frames/{frame:token}", "timeline.frame", _LOOKS,
             "One such picture, by its id."),
    _of_chat("GET", "/replay/{chat}", "pages.with_slash", _LOOKS,
             "Redirects to the same URL with a slash.", in_a_tab=True),
    _of_chat("GET", "/replay/{chat}/", "pages.replay", _LOOKS,
             "The page of the replay ([pages.md](pages.md)).", in_a_tab=True),
    _of_chat("GET", "/api/chats/{chat}/search", "file_search.get", _LOOKS,
             "Searches the chat's files for the text `q`. In `names`, `contents` or (without `in`) both. Lines of JSON "
             "while the search goes on; the last one says whether that is all. At most 10 s, 200 names, 500 lines.",
             reads_files=True),
    _of_chat("GET", "/api/chats/{chat}/changes", "file_history.changes", _LOOKS,
             "What was changed in the chat's files since the time `since` (Unix seconds). By the journal; of a sandbox "
             "that is up also the files that any program wrote."),
    _of_chat("GET", "/api/chats/{chat}/versions/{path:anything}", "file_history.versions", _LOOKS,
             "Earlier versions of a file that are kept. With `id` the file as it was before that change; 410 if it is "
             "no longer kept.", reads_files=True),
    _of_chat("GET", "/api/chats/{chat}/tail/{path:anything}", "file_views.tail", _LOOKS,
             "The end of a file, and what is added to it. Server-sent events; it keeps no sandbox up."),
    _of_chat("GET", "/api/chats/{chat}/pdf/{path:anything}", "file_views.pdf", _LOOKS,
             "An office file as PDF, made by LibreOffice in the sandbox. 501 where the image has none.",
             reads_files=True),
    _of_chat("GET", "/api/chats/{chat}/ports", "ports.listed", _LOOKS,
             "The ports that programs listen on, with links, and what is shared ([ports.md](ports.md))."),
    _of_chat("GET", "/api/chats/{chat}/ports/events", "ports.events", _LOOKS,
             "The same each time that it changes, server-sent events."),
    _of_chat("POST", "/api/chats/{chat}/ports/{port:number}/share", "ports.share", _LOOKS,
             "Makes a port public for `hours` (in the query; 24, at most 720). `{url, expires}`: whoever has the "
             "link can open it."),
    _of_chat("DELETE", "/api/chats/{chat}/ports/{port:number}/share", "ports.revoke", _LOOKS,
             "Makes a port private again: the public link ends at once."),
    _of_chat(WEBSOCKET, "/api/chats/{chat}/ports/{port:number}/tcp", "ports.forward", _USES,
             "One TCP connection to a port: binary messages are its bytes, the text `eof` ends a direction "
             "(`cubicle port`)."),
    Row("GET", "/api/links/{chat}", "links.listed", _KEY, _LOOKS,
        "The links of a chat that were made by hand ([keys.md](keys.md#links)).", ChatIn.PATH),
    Row("POST", "/api/links/{chat}", "links.make", _KEY, _LOOKS,
        "Makes a link. In the query, not in a body: `access` is `view` or `control`, `hours` (168) its life, `label` "
        "whom it is for. `opens` is `chat`, `replay`, or `file` with its `path`: a link to a part opens nothing else, "
        "and only lets one look.",
        ChatIn.PATH),
    Row("DELETE", "/api/links/{chat}", "links.revoke_all", _KEY, _LOOKS,
        "Revokes every link of a chat. Those of its prompts and private ports too.", ChatIn.PATH),
    Row("DELETE", "/api/links/{chat}/{link:token}", "links.revoke", _KEY, _LOOKS, "Revokes one link.", ChatIn.PATH),
    Row("POST", "/api/sign-in-links", "links.sign_in", _KEY, _LOOKS,
        "A link that signs one browser in, once. `{url, seconds}`."),
    Row("GET", "/api/sandboxes", "admin.listed", _KEY, _LOOKS,
        "The sandboxes of the tenant, with the trash. An operator may ask for another's (`tenant=NAME`, `tenant=*`)."),
    Row("POST", "/api/sandboxes/{chat}/stop", "admin.stop", _KEY, _ENDS, "Stops a sandbox.", ChatIn.PATH),
    Row("DELETE", "/api/sandboxes/{chat}", "admin.remove", _KEY, _ENDS,
        "Moves a chat to the trash (`TRASH_DAYS`).", ChatIn.PATH),
    Row("GET", "/api/overview", "overview.get", _KEY, _LOOKS,
        "The numbers and the table of the admin page. `q`, `state`, `sort`, `order`, `offset`, `limit` choose rows, "
        "`tenant` as above."),
    Row("GET", "/api/overview/events", "overview.events", _KEY, _LOOKS,
        "The same each time that a part of it changes, server-sent events."),
    Row("GET", "/api/admin/webhooks", "webhooks.listed", _OPERATOR, _LOOKS,
        "The receivers of webhooks and the dead letters ([webhooks.md](webhooks.md))."),
    Row("POST", "/api/admin/webhooks/retry", "webhooks.retry", _OPERATOR, _LOOKS,
        "Sends dead letters again: all, those of one `receiver`, or one by its `id`."),
    Row("GET", "/", "pages.home", _KEY, _LOOKS, "The home page ([pages.md](pages.md))."),
    Row("GET", "/api/home", "home.get", _KEY, _LOOKS,
        "What the home page shows. The chats of the tenant that were used last, the client that came last, the demo."),
    Row("GET", "/api/home/events", "home.events", _KEY, _LOOKS,
        "The same each time that a part of it changes, server-sent events."),
    Row("GET", "/api/home/pictures/{chat}", "home.picture", _KEY, _LOOKS,
        "The last picture of a chat's browser that was taken for the home page.", ChatIn.PATH),
    Row("GET", "/api/home/connection", "home.connection", _KEY, _LOOKS, "How MCP clients connect."),
    Row("POST", "/api/home/key", "home.key", _KEY, _LOOKS,
        "`MCP_API_KEY`, for a person who signed in with it. Others get 404."),
    Row("POST", "/api/demo", "home.demo", _KEY, _WAKES,
        "Plays the demo in the chat `demo`, by the same tools as MCP calls ([pages.md](pages.md#home)). 202; one at a "
        "time: joins the one that plays.", ChatIn.DEMO),
    Row("GET", "/login", "pages.login", _ANYBODY, _LOOKS, "The page that asks for the key ([pages.md](pages.md))."),
    Row("POST", "/login", "login.post", _ANYBODY, _LOOKS, "Takes the key from that page, and sets a cookie."),
    Row("GET", "/login/oauth", "issuer_login.begin", _ANYBODY, _LOOKS,
        "Redirects to the OAuth issuer, where a person signs in ([oauth.md](oauth.md)). Without one 404."),
    Row("GET", "/login/callback", "issuer_login.finish", _ANYBODY, _LOOKS,
        "Where the issuer leads back to, with a code. Sets the cookie of a sign-in."),
    Row("POST", "/logout", "issuer_login.out", _ANYBODY, _LOOKS, "Signs a person out: takes the cookie away."),
    Row("GET", "/admin", "pages.admin", _KEY, _LOOKS, "The admin page ([pages.md](pages.md))."),
    Row("GET", "/static/viewer", "pages.viewer", _ANYBODY, _LOOKS, "The frame in which files are parsed."),
    Row(ANY_METHOD, "/static", "pages.static", _ANYBODY, _LOOKS, "Scripts and styles of the pages.", mount=True),
)  # fmt: skip

ROWS = (*_SERVICE, *_FILES, *_BROWSER, *_TERMINAL, *_OWN)
"""All but MCP's own, whose paths are a setting."""

MCP_METHODS: dict[str, Use] = {
    "initialize": Use.LOOKS,
    "server/discover": Use.LOOKS,
    "ping": Use.LOOKS,
    "tools/list": Use.LOOKS,
    "tools/call": Use.WAKES,
    "resources/list": Use.LOOKS,
    "resources/templates/list": Use.LOOKS,
    "resources/read": Use.LOOKS,
    "subscriptions/listen": Use.LOOKS,
    "prompts/list": Use.LOOKS,
    "prompts/get": Use.LOOKS,
    "completion/complete": Use.LOOKS,
    "logging/setLevel": Use.LOOKS,
    "tasks/get": Use.LOOKS,
    "tasks/result": Use.LOOKS,
    "tasks/cancel": Use.LOOKS,
    "tasks/update": Use.LOOKS,
    "tasks/list": Use.LOOKS,
}
