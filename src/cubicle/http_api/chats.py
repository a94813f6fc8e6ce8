"""Whose chat a path names: the id from the path, the tenant from the key that let the request in."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from cubicle.core.chat import DEFAULT_CHAT_ID, BadChatId, Chat
from cubicle.core.chat_isolation import Isolation
from cubicle.http_api.routes import row_of
from cubicle.http_api.urls import segment
from cubicle.log import note_caller


def chat_of(connection: HTTPConnection) -> Chat:
    """The chat of `{chat}` in the path. The gate before the routes sets `state.tenant`. Raises BadChatId."""
    # Routes and the gate see the decoded path, what comes behind the id is read from the raw one: an encoded slash
    # before it would make these two different chats.
    sent = segment(connection, row_of(connection.scope).chat_segment)
    if sent != connection.path_params["chat"]:
        raise BadChatId("The address has an encoded slash before or in the chat id.")
    named = Chat(sent, connection.state.tenant)
    opened = getattr(connection.state, "opened", None)
    if opened is not None and named != opened:
        raise BadChatId("The link is another chat's.")
    alone = getattr(connection.state, "isolation", None) is Isolation.SINGLE
    chat = Chat(DEFAULT_CHAT_ID, named.tenant) if alone else named
    note_caller(chat, getattr(connection.state, "user", None))
    return chat
