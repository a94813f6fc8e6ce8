"""Whose chat a path names: the id from the path, the tenant from the key that let the request in."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from cubicle.http_api.addresses import route_path, segment
from cubicle.log import note
from cubicle.rules.chats import DEFAULT_CHAT_ID, Chat
from cubicle.rules.isolation import Isolation


def chat_of(connection: HTTPConnection) -> Chat:
    """The chat of `{chat}` in the path. The gate before the routes sets `state.tenant`. Raises BadChatId."""
    # Routes see the decoded path, where an encoded slash ends the id too early: the segment itself is what counts.
    named = Chat(
        segment(connection, 3 if route_path(connection.scope).startswith("/api/") else 2), connection.state.tenant
    )
    alone = getattr(connection.state, "isolation", None) is Isolation.SINGLE
    chat = Chat(DEFAULT_CHAT_ID, named.tenant) if alone else named
    note(chat=chat.id)
    return chat
