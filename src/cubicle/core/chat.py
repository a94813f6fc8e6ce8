"""Whose sandbox: chat ids, tenants, and the fixed-length name that drivers use."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

_CHAT_ID = re.compile(r"[A-Za-z0-9_:@-][A-Za-z0-9._:@-]{0,127}")

DEFAULT_CHAT_ID = "default"
DEFAULT_TENANT = "main"


class BadChatId(ValueError):
    """The text is not a chat id; the message says what one looks like."""


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat of one tenant: the owner of one sandbox. Two that differ in letter case are two."""

    id: str
    tenant: str = DEFAULT_TENANT

    def __post_init__(self) -> None:
        if not _CHAT_ID.fullmatch(self.id):
            raise BadChatId("A chat id is 1 to 128 characters of A-Z a-z 0-9 . _ : @ - and does not start with a dot.")

    @property
    def digest(self) -> str:
        """The name for folders, containers and pods: never the raw id."""
        return _digest(self.tenant, self.id)


@lru_cache(maxsize=4096)
def _digest(tenant: str, id: str) -> str:
    return hashlib.sha256(f"{tenant}\0{id}".encode()).hexdigest()[:32]


DEFAULT_CHAT = Chat(DEFAULT_CHAT_ID)
