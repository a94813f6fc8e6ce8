"""Who is calling: what the request headers of section 2.2 say, under every name that front ends use for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from cubicle.core.chat import DEFAULT_TENANT, Chat
from cubicle.core.chat_isolation import Isolation, assign
from cubicle.core.identity import Identity
from cubicle.core.personal_chats import chat_id_of, conversation, may_enter

CHAT_HEADERS = ("X-Chat-Id", "X-OpenWebUI-Chat-Id", "X-LibreChat-Conversation-Id", "X-Conversation-Id")
EMAIL_HEADERS = ("X-User-Email", "X-OpenWebUI-User-Email", "X-LibreChat-User-Email")
NAME_HEADERS = ("X-User-Name", "X-OpenWebUI-User-Name")
SERVERS_HEADERS = ("X-MCP-Servers", "X-OpenWebUI-MCP-Servers")

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MAX_LENGTH = 256

RawHeaders = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Caller:
    """One request's chat and person."""

    chat: Chat
    shared: bool = False
    """Lenient mode, and no chat id: the sandbox is shared, and every tool's answer says so."""
    email: str | None = None
    name: str | None = None
    mcp_servers: tuple[str, ...] = ()
    identity: Identity | None = None
    """Who was let in; None where nobody was asked, as in what the service does by itself."""
    conversation: str = ""
    """That by which `_meta` named the chat (core/personal_chats.py)."""


class NotYourChat(ValueError):
    """The headers name the workspace of another person."""


class Headers:
    """Request headers by name, in any letter case; several of one name stay several."""

    def __init__(self, raw: RawHeaders) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in raw:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())

    def all(self, name: str) -> Sequence[str]:
        return self._values.get(name.lower(), ())

    def get(self, name: str) -> str | None:
        """The first value of that name, trimmed."""
        values = self.all(name)
        return values[0] if values else None

    def first(self, names: Sequence[str]) -> str | None:
        """The first of these headers that has a value. Empty ones and templates nobody filled in have none."""
        for name in names:
            for value in self.all(name):
                if value and not _is_placeholder(value):
                    return value
        return None


def _is_placeholder(value: str) -> bool:
    """Whether it holds `{{…}}`. By look-ups: a pattern takes quadratic time on many opening brackets."""
    start = value.find("{{")
    return start >= 0 and value.find("}}", start + 2) >= 0


def chat_id(headers: Headers) -> str | None:
    return headers.first(CHAT_HEADERS)


def email(headers: Headers) -> str | None:
    return plain(headers.first(EMAIL_HEADERS))


def display_name(headers: Headers) -> str | None:
    value = headers.first(NAME_HEADERS)
    return plain(unquote(value, errors="replace")) if value else None


def mcp_servers(headers: Headers) -> tuple[str, ...]:
    value = headers.first(SERVERS_HEADERS) or ""
    names = (plain(part) for part in value.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def identify(headers: Headers, mode: Isolation, identity: Identity | None = None) -> Caller:
    """The caller that these headers name. Raises ChatIdMissing, BadChatId, NotYourChat."""
    identity = identity or Identity(DEFAULT_TENANT, user=email(headers))
    if identity.person:  # never the shared chat: a person has one
        named = chat_id(headers) if mode is not Isolation.SINGLE else None
        sent, shared = named or chat_id_of(identity.person), False
    else:
        sent, shared = assign(mode, chat_id(headers))
    if not may_enter(identity, sent):
        raise NotYourChat("This chat is the workspace of another person.")
    return Caller(
        Chat(sent, identity.tenant), shared, identity.user, display_name(headers), mcp_servers(headers), identity
    )


def in_conversation(caller: Caller, headers: Headers, mode: Isolation, meta: Any) -> Caller:
    """The same caller in the chat of the conversation that `_meta` names, where no header names a chat.

    Raises ChatIdMissing when nothing does, and one is required.
    """
    return in_named(caller, headers, mode, conversation(meta))


def in_named(caller: Caller, headers: Headers, mode: Isolation, named: str | None) -> Caller:
    """The same of a conversation by its name in chat ids. Raises ChatIdMissing, BadChatId."""
    if mode is Isolation.SINGLE or chat_id(headers) is not None:
        return caller
    identity = caller.identity or Identity(caller.chat.tenant)
    if named:
        chat = Chat(chat_id_of(identity.person, named), caller.chat.tenant)
        return replace(caller, chat=chat, shared=False, conversation=named)
    if not identity.person:
        assign(mode, None)
    return caller


def plain(text: str | None) -> str | None:
    """One printable line of bounded length: header values end up in prompts and logs."""
    if text is None:
        return None
    return _UNPRINTABLE.sub(" ", text).strip()[:_MAX_LENGTH] or None
