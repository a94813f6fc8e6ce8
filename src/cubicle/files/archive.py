"""Everything of a chat as one zip, made as it is sent: constant memory whatever the size.

The zip library pulls; the sandbox is asked on the event loop. So each chunk is made in a worker thread, which calls
back to the loop for the next entry and the next bytes. Few threads work at once; one that waits for its sandbox lets
another work, for a sandbox may take for ever.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import anyio
from anyio import from_thread, to_thread

from cubicle.core.paths import is_plain, readable
from cubicle.core.text import one_line
from cubicle.files.browse import ROOTS
from cubicle.guest.operations import FileStat
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.machine.files import FileReader
from cubicle.machine.machine import Machine
from cubicle.machine.passed_file import WORTH

if TYPE_CHECKING:
    from stream_zip import MemberFile

NOTE = "left-out.txt"
CACHES = frozenset({"__pycache__", "node_modules"})
_CHUNK = 256 * 1024
_DEEPEST = 64
_MAX_IN_FOLDER = 1_000_000
_MAX_HOLE = 256 * 1024**2
_MAX_NOTE = 1000
_EARLIEST, _LATEST = 315_532_800.0, 2_145_916_800.0  # 1980 and 2038: what every unzip can read
_WHY = {
    "symlink": "it is a link",
    "other": "it is not a plain file",
    "gone": "it went away",
    "unreadable": "it cannot be read",
    "too deep": f"it lies more than {_DEEPEST} folders deep",
}
_SAMPLE = 16 * 1024
MAX_AT_ONCE = 16
_workers = anyio.CapacityLimiter(MAX_AT_ONCE)
_working = threading.BoundedSemaphore(4)
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


@dataclass(frozen=True, slots=True)
class Member:
    """What goes into the archive if it is a plain file or an empty folder, or else is named as left out."""

    name: str
    path: str
    root: str
    kind: str
    size: int = 0
    blocks: int = 0
    mtime: float = 0.0


async def members(machine: Machine) -> AsyncIterator[Member]:
    """All of the three roots, no link followed; of the workspace, nothing in dot-folders and caches.

    A folder is one itself if nothing in it is, or if it cannot be looked into.
    """
    for name, root in ROOTS.items():
        async for member in _beneath(machine, root, name, "", _DEEPEST):
            yield member


async def _beneath(
    machine: Machine, root: str, prefix: str, folder: str, depth: int, mtime: float = 0.0
) -> AsyncIterator[Member]:
    full = f"{root}/{folder}" if folder else root
    empty = bool(folder)
    try:
        async for entry in machine.list(full, hidden=True, limit=_MAX_IN_FOLDER, roots=(root,)):
            is_folder = entry.kind == "directory"
            if is_folder and prefix == "workspace" and _is_cache(entry.path):
                continue
            empty = False
            path = f"{folder}/{entry.path}" if folder else entry.path
            name = f"{prefix}/{path}"
            if not is_folder:
                yield Member(name, f"{root}/{path}", root, entry.kind, entry.size, entry.blocks, entry.mtime)
            elif depth == 0:
                yield Member(name, f"{root}/{path}", root, "too deep")
            else:
                async for member in _beneath(machine, root, prefix, path, depth - 1, entry.mtime):
                    yield member
    except MachineError as error:
        empty = False
        kind = "gone" if error.code == ErrorCode.NOT_FOUND else "unreadable"
        yield Member(f"{prefix}/{folder}".rstrip("/"), full, root, kind)
    if empty:
        yield Member(f"{prefix}/{folder}", full, root, "directory", mtime=mtime)


def _worked(zipped: Iterator[bytes]) -> bytes | None:
    """In a worker thread: the next chunk."""
    with _working:
        return next(zipped, None)


def _waited(ask: Callable[[*_Ts], Coroutine[Any, Any, _T]], *arguments: *_Ts) -> _T:
    """In the midst of that: what the sandbox answers."""
    _working.release()
    try:
        return from_thread.run(ask, *arguments)
    finally:
        _working.acquire()


def _is_cache(name: str) -> bool:
    return name.startswith(".") or name in CACHES


class Archive:
    """The zip of one machine's files."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._members = members(machine)
        self._reading: AbstractAsyncContextManager[FileReader] | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._left_out: list[str] = []

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            zipped = await to_thread.run_sync(self._zipped, limiter=_workers)
            while True:
                chunk = await to_thread.run_sync(_worked, zipped, limiter=_workers)
                if chunk is None:
                    return
                yield chunk
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()

    # ---- in the worker thread

    def _zipped(self) -> Iterator[bytes]:
        from stream_zip import stream_zip  # takes a tenth of a second to import: it brings ciphers

        return iter(stream_zip(self._entries(), chunk_size=_CHUNK))

    def _entries(self) -> Iterator[MemberFile]:
        from stream_zip import ZIP_AUTO

        while (member := _waited(self._next_member)) is not None:
            if member.kind == "directory":
                yield f"{_safe(member.name)}/", _time(member.mtime), 0o755, ZIP_AUTO(0, level=0), ()
                continue
            if member.kind != "file":
                self._leave_out(member, _WHY[member.kind])
                continue
            if member.size - member.blocks > _MAX_HOLE:
                self._leave_out(member, "it is mostly empty space")
                continue
            opened = _waited(self._open, member)
            if opened is not None:
                stat, size, start = opened
                mode = 0o755 if stat.mode & 0o111 else 0o644
                method = ZIP_AUTO(size, level=1 if _shrinks(start) else 0)
                yield _safe(member.name), _time(member.mtime), mode, method, self._data(start)
        if self._left_out:
            text = "\n".join(["These are not in the archive:", *self._left_out, ""]).encode()
            yield NOTE, datetime.now(UTC), 0o644, ZIP_AUTO(len(text), level=1), [text]

    def _data(self, start: bytes) -> Iterator[bytes]:
        yield start
        while (chunk := _waited(self._next_chunk)) is not None:
            yield chunk

    def _leave_out(self, member: Member, why: str) -> None:
        if len(self._left_out) < _MAX_NOTE:
            self._left_out.append(f"{one_line(readable(member.name), 500)}: {why}")

    # ---- on the event loop

    async def _next_member(self) -> Member | None:
        return await anext(self._members, None)

    async def _open(self, member: Member) -> tuple[FileStat, int, bytes] | None:
        """Open the file; what it is, how many bytes will come, and the first. None when it cannot be read."""
        await self._close_file()
        reading = self._machine.read(member.path, roots=(member.root,), straight=member.size >= WORTH)
        try:
            reader = await reading.__aenter__()
        except MachineError as error:
            self._leave_out(member, _WHY["gone" if error.code == ErrorCode.NOT_FOUND else "unreadable"])
            return None
        self._reading, self._chunks = reading, aiter(reader)
        return reader.stat, reader.length, await anext(self._chunks, b"")

    async def _next_chunk(self) -> bytes | None:
        if self._chunks is None:
            return None
        chunk = await anext(self._chunks, None)
        if chunk is None:
            await self._close_file()
        return chunk

    async def _close_file(self) -> None:
        reading, self._reading, self._chunks = self._reading, None, None
        if reading is not None:
            await reading.__aexit__(None, None, None)

    async def _close(self) -> None:
        await self._close_file()
        await self._members.aclose()  # type: ignore[attr-defined]


def _safe(path: str) -> str:
    """The name in the archive: one that no unzip program reads as a way out, and each only once. What had to be changed
    bears a mark of what it was, for another file may have the name that it would get."""
    name = "".join(c if is_plain(c) and c not in '\\:*?"<>|' else "_" for c in readable(path))
    if name == path:
        return name
    mark = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    folder, slash, last = name.rpartition("/")
    stem, _, suffix = last.rpartition(".")
    marked = f"{stem}~{mark}.{suffix}" if stem else f"{last}~{mark}"
    return f"{folder}{slash}{marked}"


def _shrinks(start: bytes) -> bool:
    """Whether compressing is worth its time: pictures, videos and archives are compressed already."""
    sample = start[:_SAMPLE]
    return len(zlib.compress(sample, 1)) < len(sample) * 0.9


def _time(mtime: float) -> datetime:
    seconds = mtime if mtime == mtime else 0.0
    return datetime.fromtimestamp(min(max(seconds, _EARLIEST), _LATEST), UTC)
