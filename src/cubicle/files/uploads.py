"""A chat's uploaded files. The folder is the truth: nothing else remembers what was uploaded."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial

from cubicle.core.chat import Chat
from cubicle.core.media_types import is_text, media_type
from cubicle.core.paths import DEEPEST
from cubicle.core.resource_uris import NoSuchResource, ResourceTooLarge
from cubicle.files.changes import Changes
from cubicle.files.checksum import Checksum
from cubicle.guest.wire import ErrorCode
from cubicle.journal.journal import Journal, no_journal
from cubicle.machine.errors import Gone, MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.upload_folder import UploadFolder
from cubicle.machine.zero_copy import ZeroCopySource
from cubicle.sandbox.fleet import Fleet, NoSandbox

FOLDER = "/mnt/user-data/uploads"
MAX_READ = 16 * 1024**2
MAX_LISTED = 100_000
_MAX_SUMMED = 16 * 1024**2
_MAX_SUMS = MAX_LISTED  # with fewer, the list of a full folder would read every file each time


class TooLarge(Exception):
    """The upload is over the limit; nothing of it is kept."""


class DiskFull(Exception):
    """The sandbox has no room for the upload; nothing of it is kept."""


class NameTaken(Exception):
    """The name, or a folder of the path, cannot be used: it is another kind of thing already."""


@dataclass(frozen=True, slots=True)
class Upload:
    """One file beneath the folder."""

    path: str
    size: int
    mtime: float

    @property
    def name(self) -> str:
        """The file's own name; bytes in it that are no text are replaced."""
        return self.path.rpartition("/")[2].encode("utf-8", "replace").decode()

    @property
    def media_type(self) -> str:
        return media_type(self.name)


@dataclass(frozen=True, slots=True)
class Content:
    """A file's bytes; its text too, where its type says that it is text: what is no UTF-8 is marked there."""

    media_type: str
    data: bytes
    text: str | None


class Uploads:
    """Reads the folder through the sandbox that it belongs to; a chat without a sandbox has no files.

    To read is not to use the sandbox: one that sleeps is woken only where `wake` says so, else it is `Asleep`.
    """

    def __init__(self, fleet: Fleet, journal: Journal | None = None) -> None:
        self._fleet = fleet
        self._journal = journal or no_journal()
        self.changes = Changes()
        self._sums: OrderedDict[tuple[Chat, str, int, float], str] = OrderedDict()

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        for key in [key for key in self._sums if key[0] == chat]:
            del self._sums[key]

    def _machine(self, chat: Chat, wake: bool) -> AbstractAsyncContextManager[Machine]:
        return self._fleet.lease(chat, create=False) if wake else self._fleet.look(chat, hold=True)

    async def _look(self, chat: Chat, wake: bool) -> tuple[Sequence[Upload], bool]:
        """The files that lie in the folder now, and whether there are no more."""
        found: list[Upload] = []
        count = 0
        try:
            async with self._machine(chat, wake) as machine:
                async for entry in machine.list(
                    FOLDER, depth=DEEPEST, hidden=True, limit=MAX_LISTED + 1, roots=(FOLDER,)
                ):
                    count += 1
                    if count > MAX_LISTED:
                        return found, False
                    if entry.kind == "file":
                        found.append(Upload(entry.path, entry.size, entry.mtime))
        except (NoSandbox, MachineError):
            return [], True
        return found, True

    async def look(self, chat: Chat, *, wake: bool = False) -> None:
        """Returns when the sandbox answers, if there is one."""
        with suppress(NoSandbox, MachineError):
            async with self._machine(chat, wake) as machine:
                await machine.ping(60)

    async def list(self, chat: Chat) -> Sequence[Upload]:
        return (await self._look(chat, wake=False))[0]

    async def read(self, chat: Chat, path: str) -> Content:
        """Raises NoSuchResource when there is no such file, ResourceTooLarge when it cannot be answered whole."""
        try:
            async with self._machine(chat, wake=False) as machine:
                data = await machine.read_bytes(f"{FOLDER}/{path}", limit=MAX_READ, roots=(FOLDER,))
        except (NoSandbox, MachineError) as error:
            if isinstance(error, MachineError) and error.code == ErrorCode.TOO_BIG:
                raise ResourceTooLarge(MAX_READ) from None
            raise NoSuchResource from None
        kind = media_type(path)
        return Content(kind, data, _decoded(data) if is_text(kind) else None)

    async def save(self, chat: Chat, path: str, content: AsyncIterable[bytes], *, limit: int) -> tuple[Upload, str]:
        """Put the file in place, whole or not at all; its record and SHA-256. Makes the sandbox if there is none."""
        async with self._fleet.lease(chat) as machine:
            if machine.uploads is not None:
                upload, digest = await _saved_here(machine.uploads, path, content, limit)
            else:
                upload, digest = await _saved_there(machine, path, bounded(content, limit))
        self._remember(chat, upload, digest)
        self._journal.record(chat, "upload", {"path": path, "size": upload.size, "hash": digest})
        await self._journal.settle(chat)
        self.changes.tell(chat, path)
        return upload, digest

    async def with_sums(self, chat: Chat, *, wake: bool = False) -> tuple[Sequence[tuple[Upload, str | None]], bool]:
        """Every file with its SHA-256, None for a large one that this service did not see come; and if that is all."""
        listed, complete = await self._look(chat, wake)
        if not listed:
            return [], complete
        async with self._machine(chat, wake) as machine:
            return [await self._summed(machine, chat, upload) for upload in listed], complete

    async def remove(self, chat: Chat, path: str) -> bool:
        """Delete the file; False when there is none."""
        try:
            async with self._fleet.lease(chat, create=False) as machine:
                found = await machine.stat(f"{FOLDER}/{path}", follow=False, roots=(FOLDER,))
                if found.kind != "file":
                    return False
                await machine.remove(f"{FOLDER}/{path}", as_root=True, roots=(FOLDER,))
                await _prune(machine, path)
        except NoSandbox:
            return False
        except MachineError as error:
            if error.code in (ErrorCode.NOT_FOUND, ErrorCode.NOT_DIRECTORY, ErrorCode.IS_DIRECTORY, ErrorCode.OUTSIDE):
                return False
            raise
        self.changes.tell(chat, path)
        return True

    async def _summed(self, machine: Machine, chat: Chat, upload: Upload) -> tuple[Upload, str | None]:
        known = self._sums.get((chat, upload.path, upload.size, upload.mtime))
        if known is not None or upload.size > _MAX_SUMMED:
            return upload, known
        digest = hashlib.sha256()
        try:
            async with machine.read(f"{FOLDER}/{upload.path}", roots=(FOLDER,)) as reader:
                upload = Upload(upload.path, reader.stat.size, reader.stat.mtime)  # it may be a newer one by now
                if upload.size > _MAX_SUMMED:
                    return upload, None
                async for chunk in reader:
                    digest.update(chunk)
        except MachineError:
            return upload, None
        self._remember(chat, upload, digest.hexdigest())
        return upload, digest.hexdigest()

    def _remember(self, chat: Chat, upload: Upload, digest: str) -> None:
        self._sums[(chat, upload.path, upload.size, upload.mtime)] = digest
        while len(self._sums) > _MAX_SUMS:
            self._sums.popitem(last=False)


async def bounded(content: AsyncIterable[bytes], limit: int) -> AsyncIterator[bytes]:
    """The same, and TooLarge in the place of what is more."""
    size = 0
    async for chunk in content:
        size += len(chunk)
        if size > limit:
            raise TooLarge
        yield chunk


async def _saved_there(machine: Machine, path: str, content: AsyncIterator[bytes]) -> tuple[Upload, str]:
    """By way of the guest, which every driver has."""
    checksum = Checksum()

    async def summed() -> AsyncIterator[bytes]:
        async for chunk in content:
            await checksum.add(chunk)
            yield chunk

    try:
        await machine.write(f"{FOLDER}/{path}", summed(), as_root=True, roots=(FOLDER,), sync=True)
        found = await machine.stat(f"{FOLDER}/{path}", roots=(FOLDER,))
    except Exception as error:
        await _prune(machine, path)
        if not isinstance(error, MachineError):
            raise
        if error.code == ErrorCode.NO_SPACE:
            raise DiskFull from None
        if error.code in (ErrorCode.IS_DIRECTORY, ErrorCode.NOT_DIRECTORY, ErrorCode.EXISTS):
            raise NameTaken from None
        raise
    return Upload(path, found.size, found.mtime), await checksum.finish()


async def _prune(machine: Machine, path: str) -> None:
    """Remove the folders that only led to a file that is gone: nobody could, and their names would be taken."""
    if machine.uploads is not None:
        await asyncio.to_thread(machine.uploads.prune, path)
        return
    with suppress(SandboxError):  # the guest removes no folder that holds anything
        while folder := os.path.dirname(path):
            await machine.remove(f"{FOLDER}/{folder}", as_root=True, roots=(FOLDER,))
            path = folder


async def _saved_here(folder: UploadFolder, path: str, content: AsyncIterable[bytes], limit: int) -> tuple[Upload, str]:
    """Straight to the disk: half the work of the way by the guest."""
    try:
        if isinstance(content, ZeroCopySource):  # its length is known, and was looked at
            found, digest = await content.into(partial(folder.draft, path))
        else:
            found, digest = await _written(folder, path, bounded(content, limit))
    except OSError as error:
        raise _said(error) from error
    return Upload(path, found.st_size, found.st_mtime), digest


async def _written(folder: UploadFolder, path: str, content: AsyncIterator[bytes]) -> tuple[os.stat_result, str]:
    draft = await asyncio.to_thread(folder.draft, path)
    checksum = Checksum(draft.write)
    try:
        async for chunk in content:
            await checksum.add(chunk)
        digest = await checksum.finish()
        return await asyncio.to_thread(draft.publish), digest
    finally:
        checksum.drop()
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, draft.close))


def _said(error: OSError) -> Exception:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return DiskFull()
        case errno.ENOTDIR | errno.EISDIR | errno.EEXIST | errno.ELOOP | errno.ENOTEMPTY:
            return NameTaken()
        case errno.ESTALE | errno.ENOENT:
            return Gone("The sandbox ended while the file was uploaded.")
    return MachineError(ErrorCode.IO, "The file could not be written.")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8", "replace")
