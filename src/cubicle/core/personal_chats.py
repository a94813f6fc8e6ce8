"""Whose chat it is without a chat id: what clients say of their conversation, and the workspaces of people.

A chat id `user:<person>` is the workspace of one person whom an OAuth issuer knows, and `user:<person>:<conversation>`
that of one of the person's conversations. Nobody else of the tenant enters either by an OAuth token or sign-in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from cubicle.core.identity import Identity

PREFIX = "user:"
META_KEYS = (("openai/session", "chatgpt"), ("vscode.conversationId", "vscode"))
"""Keys of `_meta` in which clients name the conversation, and what stands for them in chat ids."""
_MAX_VALUE = 1024


def conversation(meta: Any) -> str | None:
    """The conversation that `_meta` of a request names, as a part of a chat id; None when it names none.

    Hashed: the client chose it, and it may hold anything.
    """
    if not isinstance(meta, Mapping):
        return None
    for key, client in META_KEYS:
        value = meta.get(key)
        if isinstance(value, str) and 0 < len(value) <= _MAX_VALUE:
            digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:24]
            return f"{client}-{digest}"
    return None


def chat_id_of(person: str, named: str | None = None) -> str:
    """The workspace of a person (empty: of nobody in particular), or of the conversation that a client named."""
    if not person:
        return f"conversation:{named}"
    return f"{PREFIX}{person}:{named}" if named else f"{PREFIX}{person}"


def may_enter(identity: Identity, chat_id: str) -> bool:
    """Whether somebody whom the tenant's chats are open to may enter this one."""
    if not identity.person or identity.is_operator or not chat_id.startswith(PREFIX):
        return True
    return chat_id.removeprefix(PREFIX).partition(":")[0] == identity.person
