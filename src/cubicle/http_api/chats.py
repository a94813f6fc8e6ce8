"""Whose chat a path names: the id from the path, the tenant from the key that let the request in."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from cubicle.log import note
from cubicle.rules.chats import DEFAULT_CHAT_ID, Chat
from cubicle.rules.isolation import Isolation


def chat_of(connection: HTTPConnection) -> Chat:
    """The chat of `{chat}` in the path. The gate before the routes sets `state.tenant`. Raises BadChatId."""
    named = Chat(connection.path_params["chat"], connection.state.tenant)
    alone = getattr(connection.state, "isolation", None) is Isolation.SINGLE
    chat = Chat(DEFAULT_CHAT_ID, named.tenant) if alone else named
    note(chat=chat.id)
    return chat
