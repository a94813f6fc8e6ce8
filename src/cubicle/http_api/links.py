"""The routes about links: those of a chat, which can be revoked, and those that sign a browser in once."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.chat.link_store import MadeLink, TooManyLinks
from cubicle.chat.links import Links
from cubicle.core.caller import plain
from cubicle.core.identity import Identity, LinkAccess
from cubicle.core.link_scope import BadScope, LinkScope, Opens
from cubicle.core.signing import SignIn
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import refuse
from cubicle.http_api.models import ChatLink, SignInLink
from cubicle.http_api.urls import require_no_body

MAX_HOURS = 8760.0
ONE_TIME_SECONDS = 600


class LinkRoutes:
    """For whoever has the key: a link makes no other link."""

    def __init__(self, links: Links) -> None:
        self._links = links

    async def listed(self, request: Request) -> Response:
        found = self._links.store.of(chat_of(request)).links
        return JSONResponse({"links": [_row(link) for link in found]})

    async def make(self, request: Request) -> Response:
        require_no_body(request)
        chat, asked = chat_of(request), request.query_params
        if not self._links.locked:
            raise refuse(400, "This service has no key: every chat is open without a link.")
        access = asked.get("access", LinkAccess.VIEW.value)
        if access not in list(LinkAccess):
            raise refuse(400, "access has to be view or control.")
        try:
            hours = float(asked.get("hours", "168"))
        except ValueError:
            raise refuse(400, "hours has to be a number.") from None
        if not 0 < hours <= MAX_HOURS:
            raise refuse(400, f"hours has to be more than 0 and at most {MAX_HOURS:g}.")
        label = plain(asked.get("label", "")) or ""
        try:
            scope = LinkScope.of(asked.get("opens", Opens.CHAT.value), asked.get("path", ""))
        except BadScope as error:
            raise refuse(400, str(error)) from None
        if access != LinkAccess.VIEW and not scope.is_whole:
            raise refuse(400, "A link to a part of a chat lets one look: access has to be view.")
        try:
            made, key = await asyncio.to_thread(self._links.made, chat, LinkAccess(access), hours, label[:200], scope)
        except TooManyLinks as error:
            raise refuse(409, str(error)) from None
        return JSONResponse({**_row(made), "url": self._links.page(chat, key, scope)}, 201)

    async def revoke(self, request: Request) -> Response:
        if not await asyncio.to_thread(self._links.store.revoke, chat_of(request), request.path_params["link"]):
            raise refuse(404, "The chat has no such link.")
        return Response(status_code=204)

    async def revoke_all(self, request: Request) -> Response:
        await asyncio.to_thread(self._links.store.revoke_all, chat_of(request))
        return Response(status_code=204)

    async def sign_in(self, request: Request) -> Response:
        """A link that signs one browser in as whoever asks."""
        identity: Identity = request.state.identity
        if not self._links.locked:
            raise refuse(400, "This service has no key: nobody has to sign in.")
        user = "" if identity.key_id else identity.user or ""
        who = SignIn(identity.tenant, identity.role, identity.key_id, user, identity.person)
        url = self._links.one_time(who, ONE_TIME_SECONDS)
        return JSONResponse(SignInLink(url=url, seconds=ONE_TIME_SECONDS), 201, {"Cache-Control": "no-store"})


def _row(link: MadeLink) -> ChatLink:
    return {
        "id": link.id,
        "access": link.access.value,
        "label": link.label,
        "created": link.created,
        "expires": link.expires,
        "opens": link.opens,
        "path": link.path,
    }
