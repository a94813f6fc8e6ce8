"""The JSON answers of the routes that search, change and follow the files of a chat."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from cubicle.files.browse import Root
from cubicle.files.file_history import Done

_exact = with_config(ConfigDict(extra="forbid"))


@_exact
class FoundFile(TypedDict):
    """One line of the answer to a search: a name that fits."""

    type: Literal["name"]
    root: Root
    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    modified: str


@_exact
class FoundText(TypedDict):
    """One line of the answer to a search: a line of a file that holds the text."""

    type: Literal["line"]
    root: Root
    path: str
    line: int
    text: str


@_exact
class SearchEnd(TypedDict):
    """The last line of the answer to a search. `complete`: there is nothing else."""

    type: Literal["end"]
    complete: bool


@_exact
class SavedFile(TypedDict):
    """`etag` is empty if the file was changed again at once. `id` undoes the change; empty: nothing does."""

    path: str
    size: int
    etag: str
    id: str


@_exact
class RenamedFile(TypedDict):
    path: str


@_exact
class FileChangeRecord(TypedDict):
    """What was done with one file. `path` is the one in the sandbox, `shown` opens it (empty: it cannot be opened)."""

    id: str
    at: float
    by: Literal["model", "person"]
    tool: str
    done: Done
    path: str
    shown: str
    to: str
    size_before: int
    size_after: int
    kept: bool
    undone: bool
    line: int
    text_before: str | None
    text_after: str | None


@_exact
class WrittenFile(TypedDict):
    """A file that was written in the time that was asked for, by whatever program."""

    root: Root
    path: str
    size: int
    modified: str


@_exact
class FileChanges(TypedDict):
    """The newest first. `files` is null while the sandbox is stopped: only the journal is known then."""

    changes: list[FileChangeRecord]
    files: list[WrittenFile] | None
    complete: bool


@_exact
class FileVersion(TypedDict):
    """The file as it was before the change `id`, which was made at this time, if that is known."""

    id: str
    size: int
    at: float | None
    by: Literal["model", "person", ""]
    tool: str


@_exact
class FileVersionList(TypedDict):
    versions: list[FileVersion]


@_exact
class TailPiece(TypedDict):
    """An event of a file that is followed. `reset`: it begins anew. `stopped`: why nothing more comes; else empty."""

    start: int
    text: str
    size: int
    reset: bool
    stopped: str
