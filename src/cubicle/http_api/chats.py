"""Whose chat a path names: the id from the path, the tenant from the key that let the request in."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from cubicle.chat.authentication import Who
from cubicle.core.api_keys import is_tenant
from cubicle.core.chat import DEFAULT_CHAT_ID, BadChatId, Chat
from cubicle.core.chat_isolation import Isolation
from cubicle.core.identity import Identity
from cubicle.core.personal_chats import PREFIX, chat_id_of
from cubicle.http_api.errors import refuse
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.routes import row_of
from cubicle.http_api.urls import route_path, segment
from cubicle.log import note_caller

ALL_TENANTS = "*"


def asked_tenant(connection: HTTPConnection) -> str:
    """Whose chats are asked for: the caller's own; an operator may name another tenant in the query. Raises 403."""
    own, asked = str(connection.state.tenant), connection.query_params.get("tenant", "")
    if not asked or asked == own:
        return own
    identity = getattr(connection.state, "identity", None)
    if not isinstance(identity, Identity) or not identity.is_operator:
        raise refuse(403, "Only an operator may ask for the chats of another tenant.")
    if asked != ALL_TENANTS and not is_tenant(asked):
        raise refuse(400, "tenant is not the name of one.")
    return asked


def _only(connection: HTTPConnection, named: Chat) -> Chat:
    """With one chat for all: that one. People whom an issuer knows have one each, which others do not enter."""
    if named.id.startswith(PREFIX):
        return named
    identity = getattr(connection.state, "identity", None)
    person = identity.person if isinstance(identity, Identity) else ""
    return Chat(chat_id_of(person) if person else DEFAULT_CHAT_ID, named.tenant)


def named_chat(connection: HTTPConnection, table: RouteTable) -> Chat | None:
    """The chat that a path names, before a route is found for it. Raises BadChatId."""
    path = route_path(connection.scope)
    chat_id = table.named_chat(path)
    if chat_id is None:
        return None
    tenant = connection.state.tenant if table.chat_id(path) is not None else asked_tenant(connection)
    named = Chat(chat_id, tenant)
    return _only(connection, named) if getattr(connection.state, "isolation", None) is Isolation.SINGLE else named


def chat_of(connection: HTTPConnection) -> Chat:
    """The chat of `{chat}` in the path. The gate before the routes sets `state.tenant`. Raises BadChatId."""
    # Routes and the gate see the decoded path, what comes behind the id is read from the raw one: an encoded slash
    # before it would make these two different chats.
    sent = segment(connection, row_of(connection.scope).chat_segment)
    if sent != connection.path_params["chat"]:
        raise BadChatId("The address has an encoded slash before or in the chat id.")
    named = Chat(sent, asked_tenant(connection) if row_of(connection.scope).who is Who.KEY else connection.state.tenant)
    opened = getattr(connection.state, "opened", None)
    if opened is not None and named != opened:
        raise BadChatId("The link is another chat's.")
    alone = getattr(connection.state, "isolation", None) is Isolation.SINGLE
    chat = _only(connection, named) if alone else named
    note_caller(chat, getattr(connection.state, "user", None))
    connection.state.chat = chat
    return chat
