"""The chat and the person that a plain HTTP request names."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from cubicle.core import caller
from cubicle.core.caller import Caller, Headers
from cubicle.core.chat import DEFAULT_CHAT_ID, Chat
from cubicle.core.chat_isolation import Isolation
from cubicle.core.identity import Identity
from cubicle.core.personal_chats import chat_id_of, may_enter
from cubicle.core.problem import ANOTHERS_CHAT
from cubicle.http_api.errors import HttpRefusal
from cubicle.log import note_caller


def from_query(connection: HTTPConnection, mode: Isolation) -> Caller:
    """The caller of /system-prompt and the like: a header wins, then the query, then the default chat, which for a
    person whom an issuer knows is the person's own."""
    headers, identity = Headers(connection.scope["headers"]), connection.state.identity
    own = chat_id_of(identity.person) if identity.person else DEFAULT_CHAT_ID
    chat_id = caller.chat_id(headers) or connection.query_params.get("chat_id", "").strip() or own
    if mode is Isolation.SINGLE:
        chat_id = own
    email = _email(connection, headers, identity)
    chat = Chat(chat_id, connection.state.tenant)
    if not may_enter(identity, chat.id):
        raise HttpRefusal(ANOTHERS_CHAT)
    note_caller(chat, email)
    return Caller(chat, email=email, name=caller.display_name(headers), identity=identity)


def _email(connection: HTTPConnection, headers: Headers, identity: Identity) -> str | None:
    """Whom an issuer knows, nobody names otherwise."""
    if identity.person and not identity.is_operator:
        return identity.user
    return caller.email(headers) or caller.plain(connection.query_params.get("user_email"))
