"""Renaming, and the earlier versions of a file that are kept: what the host asks for, and what it is told."""

from __future__ import annotations

from .messages import Message, Nothing, Request, clamped, count, field, many, nested, number, text
from .operations import FileOpened, FileRequest, FileSent

MAX_VERSIONS = 100


class Rename(FileRequest, Request[Nothing, Nothing]):
    """Give a file or folder another name, in the same roots. EXISTS if something has that name already."""

    OP = "rename"
    to: str = field(text)


class KeptVersion(Message):
    """A file as it was before one change."""

    id: str = field(text)
    """Of the change that replaced it."""
    size: int = field(clamped)
    order: int = field(count, default=0)
    """Later changes have higher numbers."""


class VersionList(Message):
    versions: list[KeptVersion] = field(many(nested(KeptVersion), MAX_VERSIONS), default=())


class Versions(FileRequest, Request[Nothing, VersionList]):
    """What is kept of the file under this path, the newest first."""

    OP = "versions"


class ReadVersion(FileRequest, Request[FileOpened, FileSent]):
    """Send what was under the path before the change of this id. NOT_KEPT."""

    OP = "read-version"
    id: str = field(text)
    offset: int = field(count, default=0)
    length: int | None = field(number(0, 2**63 - 1), default=None)
