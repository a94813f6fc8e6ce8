"""The files of one sandbox, to and from an archive: packed and unpacked by a program in the sandbox.

The tar library pulls and pushes in a thread; the sandbox is asked on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from cubicle.backup.archive_file import ArchiveWriter, Member, TarMembers, tar_info, tar_writer, write_member
from cubicle.backup.archive_names import AREAS, HOME, LEFT_OUT, OUTPUTS, UPLOADS, BadArchive, chat_name
from cubicle.backup.scripts import program
from cubicle.core.text import one_line
from cubicle.machine import machine as sandbox
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.process import Process
from cubicle.tasks import start_task

FOLDERS = {HOME: sandbox.HOME, OUTPUTS: sandbox.OUTPUTS, UPLOADS: sandbox.UPLOADS}
_TIMEOUT = 86_400.0
_SILENCE = 300.0
"""Seconds that a sandbox may take for the next bytes."""
_MAX_SAID = 1000
_MAX_NOTES = 256 * 1024

Found = TypeVar("Found")


class CannotUnpack(Exception):
    """The sandbox could not write the files; the message says why."""


async def pack(machine: Machine, digest: str, writer: ArchiveWriter, max_bytes: int) -> list[str]:
    """All files of a sandbox, as members of an archive; what was left out of it, a line for each. Raises BadArchive if
    the sandbox sends something else."""
    argv = ["python3", "-I", "-c", program("pack"), *(f"{name}={FOLDERS[name]}" for name in AREAS)]
    async with machine.run(argv, cwd="/", merge=False, timeout=_TIMEOUT) as process:
        source = _Output(process, asyncio.get_running_loop())
        try:
            left_out = await asyncio.to_thread(_add_all, source, digest, writer, max_bytes)
        except BadArchive:
            if not source.errors:
                raise
            raise BadArchive(f"The sandbox could not pack its files: {one_line(source.errors, 300)}") from None
        exit = await process.wait()
    if exit.code != 0:
        raise BadArchive(f"The sandbox could not pack its files: {one_line(source.errors, 300) or 'it was ended'}")
    return left_out


def _add_all(source: _Output, digest: str, writer: ArchiveWriter, max_bytes: int) -> list[str]:
    members, notes = TarMembers(source, max_bytes, prefix=chat_name(digest, "")), bytearray()
    for member in members:
        if member.place.area not in (*AREAS, LEFT_OUT):
            raise BadArchive("The sandbox sent something that does not belong there.")
        writer.add(member, _heard(members.content(), notes if member.place.area == LEFT_OUT else None))
    while source.read(1 << 16):  # what fills up the last block
        pass
    return notes.decode(errors="replace").splitlines()[1:]  # below its heading


def _heard(content: Iterator[bytes], notes: bytearray | None) -> Iterator[bytes]:
    for chunk in content:
        if notes is not None and len(notes) < _MAX_NOTES:
            notes += chunk
        yield chunk


class _Output:
    """What a command in the sandbox prints, for a thread."""

    def __init__(self, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        self._chunks = process.output
        self._loop = loop
        self._left = b""
        self.errors = ""

    def read(self, size: int) -> bytes:
        if not self._left:
            self._left = _on_loop(self._loop, self._next())
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    async def _next(self) -> bytes:
        async with patience():
            async for stream, chunk in self._chunks:
                if stream == 1:
                    return chunk
                self.errors = (self.errors + chunk.decode(errors="replace"))[-_MAX_SAID:]
        return b""


class Unpacking:
    """Writes files into one sandbox, in a thread: `add` each member, in the order of the archive, then `finish`."""

    def __init__(self, machine: Machine, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        self._machine = machine
        self._process = process
        self._loop = loop
        self._tar = tar_writer(_Input(process, loop))

    def add(self, member: Member, content: Iterator[bytes]) -> None:
        """Raises CannotUnpack."""
        area, path = member.place.area, member.place.path
        if area == UPLOADS:
            if member.kind == "file":  # only the guest may write there; its folders are made as they are needed
                self._upload(f"{FOLDERS[UPLOADS]}/{path}", member, content)
            return
        info = tar_info(member)
        info.name = f"{area}/{path}" if path else area
        write_member(self._tar, info, content)

    def finish(self) -> None:
        self._tar.close()

    def _upload(self, path: str, member: Member, content: Iterator[bytes]) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for chunk in content:
                yield chunk

        written = self._machine.write(path, chunks(), as_root=True, roots=(FOLDERS[UPLOADS],), mode=0o644)
        _on_loop(self._loop, written)


async def unpack(machine: Machine, work: Callable[[Unpacking], None]) -> None:
    """Write files into a sandbox: `work` adds them, in a thread. Raises CannotUnpack and what `work` raises."""
    argv = ["python3", "-I", "-c", program("unpack"), *(f"{name}={FOLDERS[name]}" for name in (HOME, OUTPUTS))]
    async with machine.run(argv, cwd="/", stdin=True, timeout=_TIMEOUT) as process:
        said = bytearray()
        reading = start_task(_read(process, said), name="what unpacking says")
        unpacking = Unpacking(machine, process, asyncio.get_running_loop())

        def add_all() -> None:
            work(unpacking)
            unpacking.finish()

        try:
            adding = start_task(asyncio.to_thread(add_all), name="unpacking")
            await asyncio.wait([adding, reading], return_when=asyncio.FIRST_COMPLETED)
            if not adding.done():  # the program ended before it had all
                await asyncio.wait([adding])
                adding.exception()
                raise CannotUnpack(f"The sandbox could not write the files: {_told(said)}")
            adding.result()
            process.close_input()
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        exit = await process.wait()
        if exit.code != 0:
            raise CannotUnpack(f"The sandbox could not write the files: {_told(said)}")
    # Its own file systems: those of the host, which `sync` alone means, have others' files to write.
    ended, output = await machine.output(f"sync --file-system {' '.join(FOLDERS.values())}")
    if ended.status != 0:
        raise CannotUnpack(f"The sandbox could not write the files: {_told(bytearray(output))}")


async def _read(process: Process, said: bytearray) -> None:
    async for _, chunk in process.output:
        said += chunk
        del said[:-_MAX_SAID]


def _told(said: bytearray) -> str:
    return one_line(said.decode(errors="replace"), 300) or "it was ended"


class _Input:
    """The input of a command in the sandbox, for a tar that is written in a thread."""

    def __init__(self, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        self._process = process
        self._loop = loop
        self._place = 0

    def tell(self) -> int:
        return self._place

    def write(self, data: bytes) -> int:
        async def send() -> None:
            async with patience():
                await self._process.write(data)

        _on_loop(self._loop, send())
        self._place += len(data)
        return len(data)


@asynccontextmanager
async def patience() -> AsyncIterator[None]:
    """For what a sandbox does next. Raises SandboxError when it takes too long."""
    try:
        async with asyncio.timeout(_SILENCE):
            yield
    except TimeoutError:
        raise SandboxError(f"The sandbox did nothing for {_SILENCE:g} seconds.") from None


def _on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Found]) -> Found:
    return asyncio.run_coroutine_threadsafe(work, loop).result()
