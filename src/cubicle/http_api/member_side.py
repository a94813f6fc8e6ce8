"""Where requests of other members come in, and where clients do: what a member passes on is believed nowhere else."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from cubicle.core import hop
from cubicle.core.hop import BadHop, Hop, SeenHops, UnknownKey
from cubicle.core.problem import Problem
from cubicle.http_api.forwarding import HOPPED, refuse
from cubicle.http_api.port_hosts import target_of
from cubicle.members.hop_keys import HopKeys

log = logging.getLogger(__name__)

PREFIX = b"/members/"
"""What members ask each other beneath this is no route of the service."""
_FOREIGN = Problem(403, "This request was not passed on by a member of this service.")
_NOT_BELIEVED = Problem(421, "This request was not passed on by a member of this service.")
"""To a member, which tells its client to try again: its secret or its clock is another."""

Answers = Mapping[bytes, Callable[[bytes], Awaitable[tuple[str, bytes]]]]
"""What a member tells other members: media type and body, by the path that they ask for. It is given the query."""


class PublicSide:
    """ASGI application for clients: none of them is a member."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.state: Any = getattr(app, "state", None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and any(name == hop.HEADER for name, _ in scope["headers"]):
            await refuse(scope, receive, send, _FOREIGN)
            return
        await self._app(scope, receive, send)


class MemberSide:
    """ASGI application for other members: a request comes with a hop that was signed for it, and goes no further."""

    def __init__(self, app: ASGIApp, name: str, keys: HopKeys, answers: Answers) -> None:
        self._app = app
        self._name = name
        self._keys = keys
        self._answers = answers
        self._seen = SeenHops()
        self.state: Any = getattr(app, "state", None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        values = [value for name, value in scope["headers"] if name == hop.HEADER]
        target = target_of(scope)
        try:
            if len(values) != 1:
                raise BadHop("There is not one.")
            method = scope.get("method", "WS")
            made = self._opened(values[0], method, target)
            if not self._seen.is_new(made, time.monotonic()):
                raise BadHop("It came before.")
        except BadHop as error:
            log.warning("a request of a member was refused: %s", error)
            await refuse(scope, receive, send, _NOT_BELIEVED)
            return
        if target.startswith(PREFIX):
            await self._tell(scope, receive, send, target)
            return
        headers = [line for line in scope["headers"] if line[0] != hop.HEADER]
        scope.update({"headers": headers, "client": made.client, "scheme": made.scheme, HOPPED: made})
        await self._app(scope, receive, send)

    def _opened(self, value: bytes, method: str, target: bytes) -> Hop:
        """Raises BadHop. While the secret changes, others may sign with one that is new here."""
        try:
            return hop.opened(self._keys.believed, value, method, target, self._name, time.time())
        except UnknownKey:
            return hop.opened(self._keys.believed_now(), value, method, target, self._name, time.time())

    async def _tell(self, scope: Scope, receive: Receive, send: Send, target: bytes) -> None:
        path, _, query = target.partition(b"?")
        tells = self._answers.get(path)
        if tells is None or scope["type"] != "http":
            await refuse(scope, receive, send, Problem(404, "Members are not told this."))
            return
        kind, body = await tells(query)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
