"""Files of a sandbox, as its guest describes them."""

from __future__ import annotations

import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from cubicle.sandbox.line import Channel, Data, End, MachineError

_KINDS = frozenset({"file", "directory", "symlink", "other"})


@dataclass(frozen=True, slots=True)
class Stat:
    """What is there under a name."""

    path: str
    kind: str
    size: int
    mtime: float
    mode: int
    inode: int
    blocks: int
    """Bytes that it takes on the disk: far less than its size for a sparse file."""

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        try:
            kind = fields["kind"] if fields["kind"] in _KINDS else "other"
            numbers = [max(0, int(fields[k])) for k in ("size", "mode", "inode", "blocks")]
            return cls(str(fields["path"]), kind, numbers[0], float(fields["mtime"]), *numbers[1:])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise MachineError("io", "The sandbox described a file in a way that makes no sense.") from None

    @classmethod
    def of(cls, path: str, found: os.stat_result) -> Self:
        """A plain file as the host's kernel describes it: the same that the guest sees."""
        mode, blocks = stat.S_IMODE(found.st_mode), found.st_blocks * 512
        return cls(path, "file", found.st_size, found.st_mtime, mode, found.st_ino, blocks)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a listing; the path is relative to the folder that was listed."""

    path: str
    kind: str
    size: int
    mtime: float
    blocks: int
    link: str | None

    @classmethod
    def parse(cls, line: bytes) -> Self:
        try:
            fields = json.loads(line)
            stat = Stat.parse(fields)
            link = fields.get("link")
            return cls(stat.path, stat.kind, stat.size, stat.mtime, stat.blocks, None if link is None else str(link))
        except (ValueError, AttributeError, RecursionError):
            raise MachineError("io", "The sandbox listed a folder in a way that makes no sense.") from None


@dataclass(frozen=True, slots=True)
class Written:
    created: bool
    size: int
    path: str


@dataclass(frozen=True, slots=True)
class Edited:
    path: str
    line: int
    size: int


class FileReader(ABC):
    """A file on its way out of the sandbox: what it is, then its bytes."""

    def __init__(self, stat: Stat, length: int) -> None:
        self.stat = stat
        self.length = length

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes, in order; fewer than `length` if the file is cut short meanwhile."""


class SentFile(FileReader):
    """One that the guest sends in frames."""

    def __init__(self, channel: Channel, stat: Stat, length: int) -> None:
        super().__init__(stat, length)
        self._channel = channel

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            item = await self._channel.get()
            if isinstance(item, Data):
                yield item.bytes
            elif isinstance(item, End):
                return
