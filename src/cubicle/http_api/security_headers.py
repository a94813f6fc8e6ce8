"""Headers of every answer: who may frame it, which sites may load it, and that its type is not guessed."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cubicle.core.identity import Credential
from cubicle.http_api.credential import credential_of

_STARTS = frozenset({"http.response.start", "websocket.http.response.start"})


class SecurityHeaders:
    """ASGI middleware around all others. What a route says itself stays.

    `frame_ancestors` are the sources of that directive of the Content-Security-Policy.
    """

    def __init__(self, app: ASGIApp, frame_ancestors: str = "'self'") -> None:
        self._app = app
        self._ancestors = f"frame-ancestors {frame_ancestors}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] in _STARTS:
                message = {**message, "headers": list(message.get("headers", ()))}
                self._add(scope, MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, sending if scope["type"] in ("http", "websocket") else send)

    def _add(self, scope: Scope, headers: MutableHeaders) -> None:
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("Cross-Origin-Resource-Policy", _policy(scope))
        policy = headers.get("Content-Security-Policy", "")
        if "frame-ancestors" not in policy:
            headers["Content-Security-Policy"] = f"{policy}; {self._ancestors}" if policy else self._ancestors


def _policy(scope: Scope) -> str:
    """Which pages may load the answer as a picture, a script or the like.

    A signed link is its own credential: a chat front end shows pictures by it. A service without a key is used by front
    ends on other ports of the same machine.
    """
    match credential_of(scope):
        case Credential.LINK:
            return "cross-origin"
        case Credential.NONE_NEEDED:
            return "same-site"
        case _:
            return "same-origin"
