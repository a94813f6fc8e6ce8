"""Section 2.3: the URIs of a chat's uploaded files."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from cubicle.core.chat import BadChatId, Chat

_SCHEME = "file://uploads/"


class NoSuchResource(LookupError):
    """The URI names nothing that this caller can read."""


class ResourceTooLarge(Exception):
    """It is there, and cannot be answered in one message."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The file is too large to be read as a resource ({most // 1024**2} MiB at most). "
            "Fetch it with GET /files/<chat>/uploads/<path>, or read it in the sandbox."
        )


@dataclass(frozen=True, slots=True)
class UploadUri:
    """One uploaded file: the chat's id, and the path under its uploads folder."""

    chat_id: str
    path: str

    def chat(self, tenant: str) -> Chat:
        """Raises NoSuchResource for an id that no chat can have."""
        try:
            return Chat(self.chat_id, tenant)
        except BadChatId:
            raise NoSuchResource from None

    def __str__(self) -> str:
        return f"{_SCHEME}{quote(self.chat_id, safe=':@')}/{quote(self.path, safe='', errors='surrogateescape')}"

    @classmethod
    def parse(cls, text: str) -> UploadUri:
        """Raises NoSuchResource for anything but such a URI of a file beneath the folder."""
        chat_id, slash, encoded = text.removeprefix(_SCHEME).partition("/")
        if not text.startswith(_SCHEME) or not slash or "/" in encoded:
            raise NoSuchResource
        path = unquote(encoded, errors="surrogateescape")
        if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise NoSuchResource
        return cls(unquote(chat_id), path)
