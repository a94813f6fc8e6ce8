"""Which requests use a chat's sandbox, and which only look at it: every route and MCP method, each with its class.

A test asks each of them of a sandbox that is up and of one that is stopped. What has no class here fails it.
What runs by itself in the service (the egress proxy, the agents' gateway, the upkeep of skills and README.md, the disk
watchdog) does so beside a use or without the fleet, and is no use either.
"""

from __future__ import annotations

from enum import StrEnum


class Use(StrEnum):
    LOOKS = "looks"
    """Starts nothing, and the idle time goes on. Reads of files wake the sandbox only with `wake=1` in the query."""
    USES = "uses"
    """Keeps the sandbox up for as long as it lasts, once it got through; starts none that was stopped."""
    WAKES = "wakes"
    """Makes or wakes the sandbox, and keeps it up. The two starts of pages only look for one with `wake=0`."""
    ENDS = "ends"
    """Stops or removes it."""


ROUTES: dict[str, Use] = {
    "* /mcp": Use.WAKES,  # by method: MCP_METHODS
    "* /mcp/computer_use": Use.WAKES,
    "GET /mcp-info": Use.LOOKS,
    "GET /health": Use.LOOKS,
    "GET /health/disk": Use.LOOKS,
    "GET /health/walls": Use.LOOKS,
    "GET /system-prompt": Use.LOOKS,
    "GET /skill-list": Use.LOOKS,
    "GET /skill-mounts": Use.LOOKS,
    "GET /api/uploads/{chat}": Use.LOOKS,
    "GET /api/uploads/{chat}/": Use.LOOKS,
    "POST /api/uploads/{chat}": Use.LOOKS,  # refused: it lacks a name
    "PUT /api/uploads/{chat}": Use.LOOKS,
    "POST /api/uploads/{chat}/{path}": Use.WAKES,
    "PUT /api/uploads/{chat}/{path}": Use.WAKES,
    "DELETE /api/uploads/{chat}/{path}": Use.WAKES,
    "GET /files/{chat}": Use.LOOKS,
    "GET /files/{chat}/{path}": Use.LOOKS,
    "GET /files/{chat}/archive": Use.LOOKS,
    "GET /raw/{capability}/{path}": Use.LOOKS,
    "POST /api/chats/{chat}/raw/{path}": Use.LOOKS,
    "GET /browser/{chat}/status": Use.LOOKS,
    "POST /browser/{chat}/start": Use.WAKES,
    **{
        f"{method} /browser/{{chat}}/json{question}{slash}": use
        for method in ("GET", "PUT")
        for slash in ("", "/")
        for question, use in {
            "": Use.LOOKS,
            "/list": Use.LOOKS,
            "/version": Use.LOOKS,
            "/protocol": Use.LOOKS,
            "/new": Use.USES,
            "/activate/{page}": Use.USES,
            "/close/{page}": Use.USES,
        }.items()
    },
    "WS /browser/{chat}": Use.USES,
    "WS /browser/{chat}/": Use.USES,
    "WS /browser/{chat}/devtools/page/{page}": Use.USES,
    "WS /browser/{chat}/devtools/browser/{page}": Use.USES,
    "WS /browser/{chat}/live": Use.USES,
    "GET /terminal/{chat}/status": Use.LOOKS,
    "POST /terminal/{chat}/start-ttyd": Use.WAKES,
    "WS /terminal/{chat}/ws": Use.USES,
    "GET /terminal/{chat}/sessions": Use.LOOKS,
    "GET /terminal/{chat}/sessions/{session}": Use.LOOKS,
    "POST /terminal/{chat}/sessions/{session}/resume": Use.WAKES,
    "GET /terminal/{chat}/processes": Use.LOOKS,
    "POST /terminal/{chat}/processes/{pid}/kill": Use.USES,
    "GET /api/chats/{chat}/events": Use.LOOKS,
    "POST /api/chats/{chat}/start": Use.WAKES,
    "GET /api/sandboxes": Use.LOOKS,
    "POST /api/sandboxes/{chat}/stop": Use.ENDS,
    "DELETE /api/sandboxes/{chat}": Use.ENDS,
    "GET /": Use.LOOKS,
    "GET /login": Use.LOOKS,
    "POST /login": Use.LOOKS,
    "GET /admin": Use.LOOKS,
    "GET /preview/{chat}": Use.LOOKS,
    "GET /preview/{chat}/{path}": Use.LOOKS,
    "GET /browser/{chat}": Use.LOOKS,
    "GET /browser/{chat}/": Use.LOOKS,
    "GET /terminal/{chat}": Use.LOOKS,
    "GET /terminal/{chat}/": Use.LOOKS,
    "GET /static/viewer": Use.LOOKS,
    "* /static": Use.LOOKS,
}
"""Method and path, parameters without their kind; `*` where one application answers to all methods."""

READ_ROUTES = frozenset(
    {
        "GET /api/uploads/{chat}",
        "GET /api/uploads/{chat}/",
        "GET /files/{chat}",
        "GET /files/{chat}/{path}",
        "GET /files/{chat}/archive",
        "GET /raw/{capability}/{path}",
        "POST /api/chats/{chat}/raw/{path}",
    }
)
"""The reads of files: a sandbox that is stopped is 409, and `wake=1` in the query wakes it."""

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
}
