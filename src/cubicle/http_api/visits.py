"""A sandbox for somebody who comes by the terminal or the browser, perhaps before any tool was called."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from cubicle.core import caller
from cubicle.core.caller import Caller, Headers
from cubicle.core.identity import Identity
from cubicle.http_api.chats import chat_of
from cubicle.machine.machine import Machine
from cubicle.prompt.provision import Provisioner
from cubicle.sandbox.fleet import Fleet


class Visits:
    """Where the start routes find the machine of the chat in their path."""

    def __init__(self, fleet: Fleet, provisioner: Provisioner | None = None) -> None:
        self._fleet = fleet
        self._provisioner = provisioner

    @asynccontextmanager
    async def lease(self, request: Request) -> AsyncIterator[Machine]:
        """The chat's machine with skills and README.md in it; the sandbox stays up for as long as the block lasts.

        With `wake=0` in the query nothing is made or woken, which is how a page comes back by itself.
        """
        visitor, wake = _visitor(request), request.query_params.get("wake") != "0"
        async with self._fleet.lease(visitor.chat, create=wake, wake=wake) as machine:
            if self._provisioner is not None:
                await self._provisioner.receive(machine, visitor)
            yield machine


def _visitor(request: Request) -> Caller:
    """Who has just a link names no user: it opens its chat, not the skills of whomever its holder likes. Whom an issuer
    knows, no header names otherwise."""
    chat, headers = chat_of(request), Headers(request.scope["headers"])
    if getattr(request.state, "opened", None) is not None:
        return Caller(chat)
    identity = getattr(request.state, "identity", None)
    email = caller.email(headers)
    if isinstance(identity, Identity) and identity.person:
        email = identity.user
    return Caller(chat, email=email, name=caller.display_name(headers))
