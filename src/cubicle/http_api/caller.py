"""The chat and the person that a plain HTTP request names."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from cubicle.core import caller
from cubicle.core.caller import Caller, Headers
from cubicle.core.chat import DEFAULT_CHAT_ID, Chat
from cubicle.core.chat_isolation import Isolation
from cubicle.log import note_caller


def from_query(connection: HTTPConnection, mode: Isolation) -> Caller:
    """The caller of /system-prompt and the like: a header wins, then the query, then the default chat."""
    headers = Headers(connection.scope["headers"])
    chat_id = caller.chat_id(headers) or connection.query_params.get("chat_id", "").strip() or DEFAULT_CHAT_ID
    if mode is Isolation.SINGLE:
        chat_id = DEFAULT_CHAT_ID
    email = caller.email(headers) or caller.plain(connection.query_params.get("user_email"))
    chat = Chat(chat_id, connection.state.tenant)
    note_caller(chat, email)
    return Caller(chat, email=email, name=caller.display_name(headers))
