"""Files of a sandbox, as its guest describes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from cubicle.guest.messages import BadMessage
from cubicle.guest.operations import Entry, FileOpened, FileSent, FileStat
from cubicle.guest.wire import ErrorCode
from cubicle.machine.connection import Channel
from cubicle.machine.errors import MachineError
from cubicle.machine.items import Data, End

_MAX_LINE = 64 * 1024
"""Two paths of 4,096 bytes, each byte of them escaped, and some more."""


def parse_entry(line: bytes) -> Entry:
    """One line of a listing."""
    try:
        if len(line) > _MAX_LINE:
            raise BadMessage("it is too long")
        return Entry.decode_line(line)
    except BadMessage:
        raise MachineError(ErrorCode.IO, "The sandbox listed a folder in a way that makes no sense.") from None


class FileReader(ABC):
    """A file on its way out of the sandbox: what it is, then its bytes."""

    def __init__(self, stat: FileStat, length: int) -> None:
        self.stat = stat
        self.length = length

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes, in order; fewer than `length` if the file is cut short meanwhile."""


class SentFile(FileReader):
    """One that the guest sends in frames."""

    def __init__(self, channel: Channel[FileOpened, FileSent], stat: FileStat, length: int) -> None:
        super().__init__(stat, length)
        self._channel = channel

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self.length
        while True:
            item = await self._channel.get()
            if isinstance(item, Data):
                left -= len(item.bytes)
                if left < 0:
                    raise MachineError(ErrorCode.IO, "The sandbox sent more of the file than was asked for.")
                yield item.bytes
            elif isinstance(item, End):
                return
