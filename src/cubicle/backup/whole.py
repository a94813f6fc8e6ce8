"""Everything of a service to and from one archive: the records of DATA_DIR, and the files of every chat.

What belongs to the host is left out: the drivers' own folders, locks, the trash and what was set aside. A restore that
was cut off is continued by the same command: what is there already is passed over.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from cubicle import durable, record
from cubicle.backup import MARKER
from cubicle.backup.archive_file import ArchiveReader, ArchiveWriter, Member
from cubicle.backup.archive_names import AREAS, BadArchive, data_name
from cubicle.backup.chats import ChatPlace, Contents, NewSandbox, add_chat, add_file, add_folder, require_space
from cubicle.backup.sandbox_files import CannotUnpack, Unpacking, unpack
from cubicle.core.chat import DEFAULT_TENANT, Chat
from cubicle.machine.errors import SandboxError
from cubicle.record import BadRecord
from cubicle.settings import BadSettings

KIND = "backup"
_OF_THE_HOST = frozenset({
    "sandboxes", "owners", "trash", "making", "guest", "templates", "lock", "trials.json", "reserve", "docker",
    "memory", "memory-owners", "memory-trash", "members", "serving", "serving-replicas", "lost+found", MARKER,
})  # fmt: skip


def is_of_host(name: str) -> bool:
    """Whether something in DATA_DIR is of use on this host only, or is half-made."""
    return name in _OF_THE_HOST or name.startswith((".", "importing-"))


@dataclass(slots=True)
class Outcome:
    """What became of each chat."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    without: dict[str, list[str]] = field(default_factory=dict)
    """What was left out of a chat that is in the backup."""


Told = Callable[[str], None]


async def backup(kept: ChatPlace, output: IO[bytes], tell: Told) -> Outcome:
    """Write everything; a chat of which not all can be had is named, and the others are kept."""
    outcome = Outcome()
    writer = await asyncio.to_thread(ArchiveWriter, output, KIND, id=secrets.token_hex(16))
    try:
        await asyncio.to_thread(_add_data, writer, kept.data_dir)
        records = await asyncio.to_thread(kept.index.read)
        for seen in sorted(await kept.driver.list(), key=lambda each: each.name):
            if seen.owner is None:
                continue
            known = records.get(seen.owner)
            name = known.chat.id if known else seen.owner
            tell(name)
            try:
                # The list may be hours old by now.
                now = await kept.driver.find(seen.owner, seen.name)
                if now is None:
                    continue  # it was removed
                if left_out := await add_chat(kept, replace(seen, name=now), known, writer, journal=False):
                    outcome.without[name] = left_out
                outcome.done.append(name)
            except (SandboxError, BadArchive) as error:
                outcome.failed[name] = str(error)
        await asyncio.to_thread(writer.finish)
    finally:
        writer.close()
    return outcome


def _add_data(writer: ArchiveWriter, data_dir: Path) -> None:
    for entry in sorted(os.scandir(data_dir), key=lambda each: each.name):
        if is_of_host(entry.name):
            continue
        if entry.is_dir():  # by a link, too: the operator's, to another disk
            add_folder(writer, Path(entry.path), data_name(entry.name), deep=True)
        elif entry.is_file(follow_symlinks=False):
            add_file(writer, Path(entry.path), data_name(entry.name))


def require_empty(data_dir: Path, id: str) -> None:
    """Raises BadSettings unless nothing is in DATA_DIR, or what a restore of the same file left there."""
    try:
        if record.read(data_dir / MARKER).text("backup") == id:
            return
        raise BadSettings(
            "The restore of another backup into this DATA_DIR was not finished. Continue it with that file."
        )
    except FileNotFoundError:
        pass
    except BadRecord:
        raise BadSettings(f"{data_dir / MARKER} cannot be read. Use an empty DATA_DIR.") from None
    if any(not is_of_host(entry.name) and _holds_something(entry) for entry in os.scandir(data_dir)):
        raise BadSettings(f"DATA_DIR={data_dir} is not empty. A backup is restored into an empty one.")


def _holds_something(entry: os.DirEntry[str]) -> bool:
    return not entry.is_dir(follow_symlinks=False) or any(os.scandir(entry.path))


async def restore(
    kept: ChatPlace, file: IO[bytes], found: Contents, tell: Told, leave_out: Collection[str] = ()
) -> Outcome:
    """Write back what `read_through` has found good. A chat whose files cannot be written is named, and keeps no other
    from coming back; the restore is then not finished. Raises BadArchive, SandboxError, OSError."""
    if found.kind != KIND:
        raise BadArchive("It is one chat: use `cubicle import`.")
    there = [digest for digest in found.chats or {} if await kept.driver.find(digest) is not None]
    require_space(kept.data_dir, found.size - sum(found.sizes.get(digest, 0) for digest in there))
    await asyncio.to_thread(record.write, kept.data_dir / MARKER, {"backup": found.id})
    outcome = Outcome()
    reader = ArchiveReader(file, 2**62)
    members = _Ahead(iter(reader))
    while (member := await asyncio.to_thread(members.peek)) is not None:
        digest = member.place.chat
        if not digest:
            await asyncio.to_thread(_write_data, kept.data_dir, members, reader)
            continue
        chat = (found.chats or {}).get(digest)
        name = chat.id if chat is not None else digest
        tell(name)
        if await kept.driver.find(digest) is not None:
            outcome.skipped.append(name)
        else:
            try:
                await _restore_chat(kept, members, reader, digest, chat)
                outcome.done.append(name)
            except CannotUnpack as error:
                if name in leave_out:  # only then: a chat of another tenant may have the same name
                    outcome.left_out.append(name)
                else:
                    outcome.failed[name] = str(error)
        await asyncio.to_thread(_pass_over, members, digest)
    await asyncio.to_thread(durable.sync_file_system, kept.data_dir)
    if not outcome.failed:
        await asyncio.to_thread(durable.remove, kept.data_dir / MARKER)
    return outcome


class _Ahead:
    """Members of an archive, of which the next can be seen before it is taken."""

    def __init__(self, members: Iterator[Member]) -> None:
        self._members = members
        self._next: Member | None = None

    def peek(self) -> Member | None:
        if self._next is None:
            self._next = next(self._members, None)
        return self._next

    def of(self, digest: str) -> Iterator[Member]:
        """Those of one chat, or those of the service, that come next."""
        while (member := self.peek()) is not None and member.place.chat == digest:
            self._next = None
            yield member


def _pass_over(members: _Ahead, digest: str) -> None:
    for _ in members.of(digest):
        pass


async def _restore_chat(
    kept: ChatPlace, members: _Ahead, reader: ArchiveReader, digest: str, chat: Chat | None
) -> None:
    sandbox = NewSandbox(kept, "restore", chat.tenant if chat is not None else DEFAULT_TENANT)
    try:
        machine = await sandbox.open()

        def work(unpacking: Unpacking) -> None:
            for member in members.of(digest):
                if member.place.area in AREAS:
                    unpacking.add(member, reader.content())

        await unpack(machine, work)
        await sandbox.give_to(digest, chat)
    except BaseException:
        await sandbox.undo()
        raise


def _write_data(data_dir: Path, members: _Ahead, reader: ArchiveReader) -> None:
    """Records of the service; one that is there was written by this restore before it was cut off. Blocks."""
    for member in members.of(""):
        parts = member.place.path.split("/")
        if is_of_host(parts[0]) or member.kind != "file":
            raise BadArchive(f"It holds something that does not belong there: {member.name[:200]!r}.")
        path = data_dir.joinpath(*parts)
        durable.make_folder(path.parent)
        if not path.parent.resolve().is_relative_to(data_dir.resolve()):
            raise BadArchive("DATA_DIR holds links.")
        part = path.with_name(f".{path.name[:200]}.restored")
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as output:
            for chunk in reader.content():
                output.write(chunk)
            output.flush()
            os.fsync(fd)
        os.utime(part, (member.mtime, member.mtime))  # the last use of a chat is the time of its record
        os.replace(part, path)
        durable.sync_folder(path.parent)
