"""Files of a sandbox, as its guest describes them."""

from __future__ import annotations

import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from cubicle.machine.connection import Channel, Data, End, MachineError

EntryKind = Literal["file", "directory", "symlink", "other"]
"""`other`: a pipe, socket or device."""
_KINDS: tuple[EntryKind, ...] = get_args(EntryKind)  # a tuple: what is looked for may be of a kind that no set takes
_LARGEST = 2**63 - 1
_LATEST = 1e11
"""Seconds since 1970; the host's own calendar ends long after."""
_LONGEST_LINE = 64 * 1024
"""Two paths of 4,096 bytes, each byte of them escaped, and some more."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What is there under a name."""

    path: str
    kind: EntryKind
    size: int
    mtime: float
    mode: int
    inode: int
    blocks: int
    """Bytes that it takes on the disk: far less than its size for a sparse file."""

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        try:
            kind: EntryKind = fields["kind"] if fields["kind"] in _KINDS else "other"
            numbers = [min(max(0, int(fields[k])), _LARGEST) for k in ("size", "mode", "inode", "blocks")]
            mtime = float(fields["mtime"])
            if not isinstance(fields["path"], str) or not abs(mtime) < _LATEST:
                raise ValueError
            return cls(fields["path"], kind, numbers[0], mtime, *numbers[1:])
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
    kind: EntryKind
    size: int
    mtime: float
    blocks: int
    link: str | None

    @classmethod
    def parse(cls, line: bytes) -> Self:
        try:
            if len(line) > _LONGEST_LINE:
                raise ValueError
            fields = json.loads(line)
            stat = Stat.parse(fields)
            link = fields.get("link") if isinstance(fields.get("link"), str) else None
            return cls(stat.path, stat.kind, stat.size, stat.mtime, stat.blocks, link)
        except (ValueError, AttributeError, RecursionError, TypeError):
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
        left = self.length
        while True:
            item = await self._channel.get()
            if isinstance(item, Data):
                left -= len(item.bytes)
                if left < 0:
                    raise MachineError("io", "The sandbox sent more of the file than was asked for.")
                yield item.bytes
            elif isinstance(item, End):
                return
