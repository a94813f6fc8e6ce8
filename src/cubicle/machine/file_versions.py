"""Renaming files of a sandbox, and what its guest keeps of earlier versions of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from cubicle.guest import file_versions
from cubicle.guest.file_versions import KeptVersion
from cubicle.machine.connection import GuestLink
from cubicle.machine.files import FileReader, SentFile


class FileVersions:
    """A part of Machine. A guest of an earlier version refuses all of it (MachineError `bad-request`)."""

    def __init__(self, line: GuestLink) -> None:
        self._line = line

    async def rename(self, path: str, to: str, *, roots: Sequence[str], as_root: bool = False) -> None:
        """MachineError `exists` if something has that name."""
        await self._line.ask(file_versions.Rename(path=path, to=to, roots=list(roots), as_root=as_root))

    async def of(self, path: str, *, roots: Sequence[str]) -> Sequence[KeptVersion]:
        """What is kept of a file, the newest first."""
        return (await self._line.ask(file_versions.Versions(path=path, roots=list(roots)))).versions

    @asynccontextmanager
    async def read(self, path: str, id: str, *, roots: Sequence[str]) -> AsyncIterator[FileReader]:
        """The file as it was before the change of this id; MachineError `not-kept`."""
        channel = self._line.open(file_versions.ReadVersion(path=path, id=id, roots=list(roots)))
        try:
            opened = await channel.event()
            yield SentFile(channel, opened.stat, opened.length)
        finally:
            channel.cancel()
