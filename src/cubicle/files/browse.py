"""A chat's files as people see them: outputs first, then uploads, then the workspace. All through the guest.

A path that begins with a root's name means that root before all others, so that everything can be named.

NoSuchFile       there is nothing of that name, or nothing that can be shown
Changing         the file is replaced faster than it can be opened
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from cubicle.core.http_ranges import Part, Version
from cubicle.guest.operations import Entry, FileStat
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.machine.files import FileReader
from cubicle.machine.machine import HOME, OUTPUTS, UPLOADS, Machine
from cubicle.machine.passed_file import WORTH

Root = Literal["outputs", "uploads", "workspace"]
ROOTS: dict[Root, str] = {"outputs": OUTPUTS, "uploads": UPLOADS, "workspace": HOME}
ARCHIVE = "archive"
"""The name under which a chat's files are one zip."""
MAX_LISTED = 10_000
_MEANT_OTHERWISE = frozenset({*ROOTS, ARCHIVE})
_TRIES = 5
ABSENT = frozenset(
    {
        ErrorCode.NOT_FOUND,
        ErrorCode.NOT_DIRECTORY,
        ErrorCode.IS_DIRECTORY,
        ErrorCode.NOT_REGULAR,
        ErrorCode.OUTSIDE,
        ErrorCode.PERMISSION,
        ErrorCode.BAD_NAME,
        ErrorCode.IO,
    }
)


class NoSuchFile(LookupError):
    """There is nothing of that name that can be shown."""


class Changing(Exception):
    """The file is replaced faster than it can be opened."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Something in one of the roots."""

    root: Root
    path: str
    stat: FileStat
    folders: tuple[str, ...] = tuple(ROOTS.values())
    """It lies below one of these when it is opened, too, whatever links lead there."""

    @property
    def full(self) -> str:
        return f"{ROOTS[self.root]}/{self.path}" if self.path else ROOTS[self.root]


def shown_path(root: Root, path: str) -> str:
    """The path that leads there whatever else there is: outputs come first unless the name means something else."""
    plain = root == "outputs" and path.partition("/")[0] not in _MEANT_OTHERWISE
    return path if plain else f"{root}/{path}"


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of a folder."""

    root: Root
    path: str
    entry: Entry

    @property
    def shown(self) -> str:
        return shown_path(self.root, self.path)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder holds; not `complete` when it is more, or when some of it cannot be read."""

    entries: Sequence[Listed]
    complete: bool


async def find(machine: Machine, path: str) -> FilePlace:
    """What the path leads to: in the root that its first part names, or else in outputs, uploads, workspace."""
    for root, rest in candidates(path):
        full = f"{ROOTS[root]}/{rest}" if rest else ROOTS[root]
        try:
            stat = await machine.stat(full, roots=tuple(ROOTS.values()))
        except MachineError as error:
            if error.code not in ABSENT:
                raise
            continue
        if stat.kind in ("file", "directory"):
            return FilePlace(root, rest, stat)
    raise NoSuchFile


async def find_below(machine: Machine, folder: str, path: str) -> FilePlace:
    """What the path leads to, if that lies below the folder and nothing on the way there is hidden.

    Both begin with the name of a root. A link out of the folder leads to nothing.
    """
    root, _, rest = path.partition("/")
    own, _, below = folder.partition("/")
    beyond = path.removeprefix(f"{folder}/")
    if root not in ROOTS or own != root or beyond == path or any(part.startswith(".") for part in beyond.split("/")):
        raise NoSuchFile
    folders = (f"{ROOTS[root]}/{below}" if below else ROOTS[root],)
    try:
        stat = await machine.stat(f"{ROOTS[root]}/{rest}", roots=folders)
    except MachineError as error:
        if error.code not in ABSENT:
            raise
        raise NoSuchFile from None
    return FilePlace(root, rest, stat, folders)


async def true_path(machine: Machine, path: str) -> str:
    """The path of a file that begins with its root and goes through no link: its folder is the one that it lies in."""
    place = await find(machine, path)
    if place.stat.kind != "file":
        raise NoSuchFile
    for root, folder in ROOTS.items():
        if place.stat.path.startswith(folder + "/"):
            return f"{root}{place.stat.path.removeprefix(folder)}"
    raise NoSuchFile


def candidates(path: str) -> list[tuple[Root, str]]:
    """Root and rest of the places that a path can mean, in the order in which they are tried."""
    first, _, rest = path.partition("/")
    named = [(first, rest)] if first in ROOTS else []
    return [*named, *((root, path) for root in ROOTS)]


async def listing(machine: Machine, path: str, *, hidden: bool = False) -> Listing:
    """What is in a folder; at the top, what is in those of the three roots that can be read."""
    places = [await find(machine, path)] if path else []
    folders = [(place.root, place.path) for place in places] or [(root, "") for root in ROOTS]
    entries: list[Listed] = []
    complete = True
    for root, folder in folders:
        full = f"{ROOTS[root]}/{folder}" if folder else ROOTS[root]
        try:  # one more than there is room for tells that there are more
            async for entry in machine.list(full, hidden=hidden, limit=MAX_LISTED + 1, roots=tuple(ROOTS.values())):
                if len(entries) == MAX_LISTED:
                    return Listing(entries, complete=False)
                entries.append(Listed(root, f"{folder}/{entry.path}" if folder else entry.path, entry))
        except MachineError as error:
            if error.code not in ABSENT:
                raise
            if path:
                raise NoSuchFile from None
            complete = False
    return Listing(entries, complete)


def version(stat: FileStat) -> Version:
    return Version(stat.size, stat.mtime, stat.inode)


@asynccontextmanager
async def opened(
    machine: Machine, place: FilePlace, choose: Callable[[Version], Part]
) -> AsyncIterator[tuple[FileReader, Part]]:
    """Open the part of the file that `choose` picks for its version: of one version, even if it is replaced now."""
    stat = place.stat
    async with AsyncExitStack() as stack:
        for _ in range(_TRIES):
            part = choose(version(stat))
            reading = machine.read(
                place.full,
                offset=part.start,
                length=part.length if part.partial else None,
                roots=place.folders,
                straight=part.length >= WORTH,
            )
            try:
                reader = await stack.enter_async_context(reading)
            except MachineError as error:
                if error.code in ABSENT:
                    raise NoSuchFile from None
                raise
            known, stat = stat, reader.stat
            if version(stat) == version(known):
                break
            if not part.partial and not (part := choose(version(stat))).partial:
                break  # the whole of another version is as good
            await stack.aclose()
        else:
            raise Changing
        yield reader, part
