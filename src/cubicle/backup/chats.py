"""One chat to and from an archive.

A chat is imported into a sandbox of a name of its own, and becomes the chat's when everything of it is on disk: a crash
leaves the chat as it was, and `cubicle ps` shows what it left (`import-…`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cubicle import durable, record
from cubicle.backup import databases
from cubicle.backup.archive_file import CHUNK, ArchiveReader, ArchiveWriter, Member
from cubicle.backup.archive_names import AREAS, CHAT, JOURNAL, BadArchive, Place, chat_name, is_journal_file
from cubicle.backup.sandbox_files import CannotUnpack, Unpacking, pack, unpack
from cubicle.core.api_keys import is_tenant
from cubicle.core.chat import BadChatId, Chat
from cubicle.journal.startup import IMPORTED
from cubicle.journal.verify import verify
from cubicle.machine.errors import NoSpace, NotRunning, OwnerHasSandbox, SandboxError
from cubicle.machine.machine import Machine
from cubicle.record import BadRecord, Fields
from cubicle.removal import journal_folder
from cubicle.sandbox.chat_index import ChatIndex, ChatRecord
from cubicle.sandbox.driver import Driver, SandboxSeen
from cubicle.sandbox.trash import TrashNote
from cubicle.sandbox.warm_pool import connect, new_name

KIND = "chat"
_SLACK = 1024**3
"""Bytes of an archive beside the files of a sandbox: journal, records, checksums."""
_SPARE = 64 * 1024**2
_MADE_MEANWHILE = "The chat has a sandbox: it was made meanwhile. Import it under another name."


@dataclass(frozen=True, slots=True)
class ChatPlace:
    """Where chats are kept."""

    driver: Driver
    index: ChatIndex
    data_dir: Path
    max_files: int
    """Bytes that the files of one sandbox may take."""


# ---- export


async def add_chat(
    kept: ChatPlace, seen: SandboxSeen, known: ChatRecord | None, writer: ArchiveWriter, *, journal: bool
) -> list[str]:
    """Everything of a chat; a line for each thing that was left out. A sandbox that is not up is started, and stopped
    again unless somebody uses it by then."""
    digest = seen.owner or ""
    fields = {"image": seen.image, "since": known.since if known else None}
    if known is not None:
        fields |= {"chat": known.chat.id, "tenant": known.chat.tenant}
    await asyncio.to_thread(writer.add_record, chat_name(digest, CHAT), fields)
    if journal:
        folder = journal_folder(kept.data_dir) / digest
        await asyncio.to_thread(add_folder, writer, folder, chat_name(digest, JOURNAL), only=is_journal_file)
    async with _up(kept.driver, seen) as machine:
        return await pack(machine, digest, writer, kept.max_files)


@asynccontextmanager
async def _up(driver: Driver, seen: SandboxSeen) -> AsyncIterator[Machine]:
    try:  # whatever it was when it was seen: others may have started or stopped it since
        machine, was_up = await connect(driver, seen.name), True
    except NotRunning:
        await driver.start(seen.name, seen.owner)
        machine, was_up = await connect(driver, seen.name), False
    try:
        before = (await machine.stats()).processes
        yield machine
        after = (await machine.stats()).processes
    finally:
        machine.close()
    if not was_up and before is not None and after is not None and after <= before:
        await driver.stop(seen.name)


def add_folder(
    writer: ArchiveWriter,
    folder: Path,
    prefix: str,
    *,
    deep: bool = False,
    only: Callable[[str], bool] = lambda name: not name.startswith("."),
) -> None:
    """The plain files of a folder of DATA_DIR, each as it is at one moment; of lines, whole ones. No links."""
    try:
        # Lines last: what says how far they go is then not ahead of those that are kept.
        entries = sorted(os.scandir(folder), key=lambda entry: (entry.name.endswith(".jsonl"), entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = f"{prefix}/{entry.name}"
        if entry.is_dir(follow_symlinks=False) and deep:
            add_folder(writer, Path(entry.path), name, deep=True)
        elif entry.is_file(follow_symlinks=False) and only(entry.name):
            add_file(writer, Path(entry.path), name)


def add_file(writer: ArchiveWriter, path: Path, name: str) -> None:
    """One file as it is now, if it is still there: a service may replace, append to or remove it meanwhile."""
    if name.endswith(databases.SUFFIX) and path.is_file() and not path.is_symlink():
        with databases.copy_of(path) as copy:
            _add_plain(writer, copy, name)
    elif not name.endswith(databases.BESIDE):
        _add_plain(writer, path, name)


def _add_plain(writer: ArchiveWriter, path: Path, name: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return
        size = _whole_lines(file, found.st_size) if name.endswith(".jsonl") else found.st_size
        member = Member(Place(), name, "file", size, found.st_mode & 0o777, found.st_mtime)
        writer.add(member, _exactly(file, size))


def _whole_lines(file: IO[bytes], size: int) -> int:
    """Without a line that is being written."""
    end = size
    while end > 0:
        start = max(0, end - CHUNK)
        file.seek(start)
        place = file.read(end - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0


def _exactly(file: IO[bytes], size: int) -> Iterator[bytes]:
    file.seek(0)
    while size:
        chunk = file.read(min(CHUNK, size)) or bytes(min(CHUNK, size))  # it was cut: its end is zeros
        size -= len(chunk)
        yield chunk


# ---- import


def known_chat(fields: Fields, digest: str) -> Chat | None:
    """Whose chat a record of an archive says it is. Raises BadArchive."""
    if fields.values.get("chat") is None:
        return None
    try:
        chat = Chat(fields.text("chat", 200), fields.text("tenant", 200))
    except (BadRecord, BadChatId) as error:
        raise BadArchive(f"It does not say whose chat it is: {error}.") from None
    if chat.digest != digest or not is_tenant(chat.tenant):
        raise BadArchive("It does not say whose chat it is.")
    return chat


@dataclass(slots=True)
class Contents:
    """What the first pass over an archive found."""

    kind: str = ""
    id: str = ""
    chats: dict[str, Chat | None] | None = None
    size: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of each chat, by its digest; of the service under no name."""


def read_through(file: IO[bytes], max_files: int) -> Contents:
    """Check a whole archive, and write nothing. Blocks. Raises BadArchive."""
    found = Contents(chats={})
    assert found.chats is not None
    reader = ArchiveReader(file, 2**62)
    sizes = found.sizes
    for member in reader:
        digest = member.place.chat
        if member.place.area == CHAT:
            if digest in found.chats:
                raise BadArchive("It holds a chat twice.")
            found.chats[digest] = known_chat(reader.small(member), digest)
        elif digest and digest not in found.chats:
            raise BadArchive("It does not say whose files it holds.")
        found.size += member.size
        sizes[digest] = sizes.get(digest, 0) + member.size
        if (digest and sizes[digest] > max_files + _SLACK) or len(found.chats) > 1_000_000:
            raise BadArchive("It holds more than a sandbox may (SANDBOX_DISK_MB).")
    found.kind = str(reader.header.values["kind"])
    found.id = str(reader.header.values.get("id", ""))
    return found


def require_space(folder: Path, size: int) -> None:
    """Raises NoSpace."""
    free = shutil.disk_usage(folder).free
    if free < size + _SPARE:
        raise NoSpace(
            f"DATA_DIR has {free >> 20} MiB free, and {(size + _SPARE) >> 20} MiB are needed. Nothing was done."
        )


class NewSandbox:
    """A sandbox that is filled under a chat of its own, and then given to another."""

    def __init__(self, kept: ChatPlace, what: str, tenant: str) -> None:
        self._kept = kept
        self._chat = Chat(f"{what}-{secrets.token_hex(6)}", tenant)
        self._name = new_name()
        self._machine: Machine | None = None
        self._journal = kept.data_dir / f"importing-{secrets.token_hex(6)}"
        self._placed = False

    async def open(self) -> Machine:
        await asyncio.to_thread(self._kept.index.open)
        await asyncio.to_thread(self._kept.index.enter, self._chat)
        await self._kept.driver.start(self._name, self._chat.digest)
        self._machine = await connect(self._kept.driver, self._name)
        return self._machine

    def add_journal(self, member: Member, content: Iterator[bytes]) -> None:
        durable.make_folder(self._journal)
        path = self._journal / member.place.path
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            for chunk in content:
                file.write(chunk)
            file.flush()
            os.fsync(fd)

    async def give_to(self, digest: str, chat: Chat | None) -> None:
        """All at once, by the driver's own move out of the trash. Raises SandboxError."""
        self._hang_up()
        driver = self._kept.driver
        await driver.stop(self._name)
        if await driver.find(digest) is not None:
            raise SandboxError(_MADE_MEANWHILE)
        before = await asyncio.to_thread(self._place_journal, digest)
        await driver.discard(self._name, TrashNote(chat, "an import that was not finished", time.time()))
        try:
            await driver.restore(self._name, digest)
        except OwnerHasSandbox:
            await asyncio.to_thread(self._take_journal_back, digest, before)
            raise SandboxError(_MADE_MEANWHILE) from None
        await asyncio.to_thread(self._kept.index.remove, self._chat.digest)
        if chat is not None:
            await asyncio.to_thread(self._kept.index.enter, chat)

    def _place_journal(self, digest: str) -> Path | None:
        """Where the one is now that was there before, if there was one."""
        if not self._journal.is_dir():
            return None
        found = verify(self._journal)
        if found.problems:
            raise BadArchive(f"Its journal is not good: {found.problems[0]}.")
        target = journal_folder(self._kept.data_dir) / digest
        record.make_folder(target.parent)
        # Of a chat that has no sandbox, also none in the trash.
        before = record.keep_bad(target) if os.path.lexists(target) else None
        durable.write(self._journal / IMPORTED, b"")
        durable.move(self._journal, target)
        self._placed = True
        return before

    def _take_journal_back(self, digest: str, before: Path | None) -> None:
        """The chat is another's: it has the journal again that it had."""
        target = journal_folder(self._kept.data_dir) / digest
        if self._placed:
            durable.move(target, self._journal)
        if before is not None:
            durable.move(before, target)

    async def undo(self) -> None:
        """Remove what was made."""
        self._hang_up()
        with suppress(SandboxError):
            await self._kept.driver.delete(self._name)
        await asyncio.to_thread(self._kept.index.remove, self._chat.digest)
        await asyncio.to_thread(shutil.rmtree, self._journal, ignore_errors=True)

    def _hang_up(self) -> None:
        if self._machine is not None:
            self._machine.close()
            self._machine = None


async def import_chat(kept: ChatPlace, file: IO[bytes], as_chat: str | None, tenant: str | None) -> Chat:
    """The chat that an archive became. Raises BadArchive, CannotUnpack, SandboxError."""
    found = await asyncio.to_thread(read_through, file, kept.max_files)
    chats = found.chats or {}
    if found.kind != KIND or len(chats) != 1:
        raise BadArchive("It is a backup of a whole service: use `cubicle restore`.")
    ((_digest, named),) = chats.items()
    chat = _target(named, as_chat, tenant)
    await require_free(kept, chat)
    require_space(kept.data_dir, found.size)
    sandbox = NewSandbox(kept, "import", chat.tenant)
    try:
        machine = await sandbox.open()
        reader = ArchiveReader(file, 2**62)

        def work(unpacking: Unpacking) -> None:
            for member in reader:
                add_member(member, reader, sandbox, unpacking)

        await unpack(machine, work)
        await sandbox.give_to(chat.digest, chat)
    except BaseException:
        await sandbox.undo()
        raise
    return chat


def add_member(member: Member, reader: ArchiveReader, sandbox: NewSandbox, unpacking: Unpacking) -> None:
    if member.place.area in AREAS:
        unpacking.add(member, reader.content())
    elif member.place.area == JOURNAL:
        sandbox.add_journal(member, reader.content())


def _target(named: Chat | None, as_chat: str | None, tenant: str | None) -> Chat:
    if named is None and as_chat is None:
        raise BadArchive("It does not say whose chat it is: name a chat for it by --as.")
    id = as_chat or (named.id if named is not None else "")
    owner = tenant or (named.tenant if named is not None else Chat(id).tenant)
    try:
        return Chat(id, owner)
    except BadChatId as error:
        raise BadArchive(str(error)) from None


async def require_free(kept: ChatPlace, chat: Chat) -> None:
    """Raises SandboxError if there is something of the chat that an import would hide."""
    if await kept.driver.find(chat.digest) is not None:
        raise SandboxError(f"The chat {chat.id} has a sandbox. Import the file under another name: --as NEW.")
    trash = await kept.driver.discarded()
    if any(each.owner == chat.digest for each in trash):
        raise SandboxError(
            f"A removed sandbox of the chat {chat.id} is in the trash. Import the file under another name (--as NEW), "
            f"or delete the old one first: `cubicle rm --now {chat.id}`."
        )


__all__ = ["CannotUnpack", "Contents", "NewSandbox", "add_chat", "add_folder", "import_chat", "read_through"]
