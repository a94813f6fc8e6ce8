"""Who makes a plain HTTP request: the key it shows, and the chat and person it names."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from cubicle.core import caller, problem
from cubicle.core.caller import Caller, Headers
from cubicle.core.chat import DEFAULT_CHAT_ID, Chat
from cubicle.core.chat_isolation import Isolation
from cubicle.core.keys import KeyRing
from cubicle.http_api.errors import Refusal
from cubicle.log import note_caller


def tenant(connection: HTTPConnection, ring: KeyRing) -> str:
    """The tenant whose bearer key the request shows, or its person has shown. Raises Refusal (401)."""
    opened = ring.tenant(Headers(connection.scope["headers"]).get("Authorization"))
    opened = opened or getattr(connection.state, "signed_in", None)
    if opened is None:
        raise Refusal(problem.UNAUTHORIZED)
    return opened


def from_query(connection: HTTPConnection, ring: KeyRing, mode: Isolation) -> Caller:
    """The caller of /system-prompt and the like: a header wins, then the query, then the default chat."""
    headers = Headers(connection.scope["headers"])
    owner = tenant(connection, ring)
    chat_id = caller.chat_id(headers) or connection.query_params.get("chat_id", "").strip() or DEFAULT_CHAT_ID
    if mode is Isolation.SINGLE:
        chat_id = DEFAULT_CHAT_ID
    email = caller.email(headers) or caller.plain(connection.query_params.get("user_email"))
    chat = Chat(chat_id, owner)
    note_caller(chat, email)
    return Caller(chat, email=email, name=caller.display_name(headers))
