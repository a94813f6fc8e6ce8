"""Everything that host and guest say to each other, one class a message.

A request names what the guest says while it works and at the end: `Request[event, answer]`. The names of operations and
fields are those of the JSON on the wire. They may be added to; what one means does not change within a version.
"""

from __future__ import annotations

import os
import stat

from . import wire
from .file_changes import FileChange
from .messages import (
    Message,
    Nothing,
    Request,
    between,
    call_id,
    clamped,
    count,
    field,
    flag,
    many,
    nested,
    number,
    optional,
    pair,
    seconds,
    text,
    texts_by_name,
    words,
)

__all__ = ("Nothing",)
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    _S = TypeVar("_S", bound="FileStat")

_port = number(1, 65535)
_any_port = number(0, 65535)
_terminal_size = number(0, 65535)
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
_LATEST = 1e11
"""Seconds since 1970; the host's own calendar ends long after."""


# ---- the connection


class Welcome(Message):
    """Who answers. Guests of version 1 know no range."""

    version: int = field(count)
    """The one that both sides speak from now on, if there is one."""
    oldest: int = field(count, default=1)
    newest: int = field(count, default=1)
    uptime: float = field(seconds, default=0.0)
    commands: list[str] = field(many(text), default=())
    hands: bool = field(flag, default=False)
    """Whether it passes descriptors (SCM_RIGHTS)."""
    keeps: bool = field(flag, default=False)
    """Whether it keeps what was done under an id, and does not do it again."""


class Hello(Request[Nothing, Welcome]):
    """Which versions the host speaks; a host of version 1 does not say it."""

    OP = "hello"
    oldest: int = field(count, default=1)
    newest: int = field(count, default=1)


class Ping(Request[Nothing, Nothing]):
    OP = "ping"


class Usage(Message):
    """What a sandbox uses, as far as it says."""

    cpu_seconds: float | None = field(optional(seconds), default=None)
    memory: int | None = field(optional(count), default=None)
    memory_limit: int | None = field(optional(count), default=None)
    memory_kills: int = field(count, default=0)
    processes: int | None = field(optional(count), default=None)
    disk_total: int | None = field(optional(count), default=None)
    disk_free: int | None = field(optional(count), default=None)
    uptime: float = field(seconds, default=0.0)
    links: int | None = field(optional(count), default=None)
    """Connections to the guest."""

    @property
    def disk_used(self) -> int | None:
        if self.disk_total is None or self.disk_free is None:
            return None
        return max(0, self.disk_total - self.disk_free)


class Stats(Request[Nothing, Usage]):
    OP = "stats"


class Halt(Request[Nothing, Nothing]):
    """End every process and cut every other connection; from then on nothing but this is answered."""

    OP = "halt"


class FailureDetails(Message):
    """What belongs to some error codes."""

    resolved: str | None = field(text, default=None)
    """OUTSIDE: where the path leads to."""
    carriage_returns: bool = field(flag, default=False)  # NO_MATCH: whether lines of the file end with them
    lines: list[int] = field(many(count, 1000), default=())  # MANY_MATCHES: where the first ones are
    forgotten: float = field(seconds, default=0.0)
    """NOT_FOUND of an id: the time until which ids may have been forgotten."""


class Failure(Message):
    """The request could not be done."""

    error: wire.ErrorCode = field(lambda value: wire.ErrorCode.of(value), default=wire.ErrorCode.IO)
    message: str = field(text, default="")
    details: FailureDetails = field(nested(FailureDetails), default=FailureDetails())


# ---- commands


class Started(Message):
    started: str = field(text, default="")
    """The command's id."""
    pid: int = field(count, default=0)
    again: bool = field(flag, default=False)
    """It was started before: it is followed, or what is kept of it is told."""
    kept: bool = field(flag, default=False)
    head: int = field(count, default=0)
    gap: int = field(count, default=0)
    """After how many bytes of what is told how many are missing."""


class Attached(Message):
    attached: str = field(text, default="")
    """The command's id."""
    pid: int = field(count, default=0)
    offset: int = field(count, default=0)
    """Where in the whole output what is heard begins."""
    head: int = field(count, default=0)
    gap: int = field(count, default=0)


class Exit(Message):
    """How a command ended."""

    code: int | None = field(optional(number(0, 255)), default=None)
    signal: int | None = field(optional(number(0, 64)), default=None)
    timed_out: bool = field(flag, default=False)
    out_of_memory: bool = field(flag, default=False)
    seconds: float = field(seconds, default=0.0)
    bytes: int = field(count, default=0)
    made_room: int = field(count, default=0)
    """How many background processes of earlier commands were ended, because no process could be started."""
    listening: int | None = field(optional(count), default=None)
    """As long as it is the same, no port was opened or closed. None: nobody has looked."""

    @property
    def status(self) -> int:  # as a shell says it
        return self.code if self.code is not None else 128 + (self.signal or 0)


class Run(Request[Started, Exit]):
    """Start a command and stay with it. Stream 0 is its input, 1 its output, 2 its error output."""

    OP = "run"
    argv: list[str] = field(words)
    cwd: str | None = field(optional(text), default=None)
    env: dict[str, str] | None = field(optional(texts_by_name), default=None)
    timeout: float | None = field(optional(seconds), default=None)
    pty: tuple[int, int] | None = field(optional(pair(_terminal_size, _terminal_size)), default=None)
    """Columns and rows."""
    merge: bool = field(flag, default=True)
    """Whether the error output comes as output."""
    stdin: bool = field(flag, default=False)
    id: str | None = field(optional(call_id), default=None)
    keep: bool = field(flag, default=False)
    """Never run this id twice: one that is known is followed, or told how it ended. INTERRUPTED if nobody can tell."""
    known: bool = field(flag, default=False)
    """Only follow it: NOT_FOUND instead of a start."""
    unattended: float | None = field(optional(seconds), default=None)
    """Kill it when nobody has followed it for so long, as far as a host was connected."""


class Attach(Request[Attached, Exit]):
    """Follow a command again: what is kept of its output first, then what comes. NOT_FOUND, INTERRUPTED."""

    OP = "attach"
    id: str = field(text)


class Signal(Request[Nothing, Nothing]):
    """0 is not sent: NOT_FOUND if no command of this id is running or kept."""

    OP = "signal"
    id: str = field(text)
    signal: int = field(number(0, 64))


class Resize(Request[Nothing, Nothing]):
    """A command with a terminal gets a new size."""

    OP = "resize"
    id: str = field(text)
    columns: int = field(count)
    rows: int = field(count)


class Kill(Request[Nothing, Nothing]):
    """End a command and everything that it started: TERM, patience, KILL."""

    OP = "kill"
    id: str = field(text)
    patience: float = field(seconds, default=2.0)


class Release(Request[Nothing, Nothing]):
    """Nobody follows the command any more; it goes on, and its last output is kept."""

    OP = "release"
    id: str = field(text)


# ---- files


def _kind(value: object) -> str:
    return value if isinstance(value, str) and value in ("file", "directory", "symlink") else "other"


class FileStat(Message):
    """What is there under a name."""

    path: str = field(text)
    kind: str = field(_kind)
    size: int = field(clamped)
    mtime: float = field(between(-_LATEST, _LATEST))
    mode: int = field(clamped)
    inode: int = field(clamped)
    blocks: int = field(clamped)
    """Bytes that it takes on the disk: far less than its size for a sparse file."""

    @classmethod
    def of(cls: type[_S], path: str, found: os.stat_result) -> _S:
        """As the kernel describes it."""
        return cls(
            path=path,
            kind=_KINDS.get(stat.S_IFMT(found.st_mode), "other"),
            size=found.st_size,
            mtime=found.st_mtime,
            mode=stat.S_IMODE(found.st_mode),
            inode=found.st_ino,
            blocks=found.st_blocks * 512,
        )


class Entry(FileStat):
    """One line of a folder's listing; the path is relative to that folder."""

    link: str | None = field(optional(text), default=None)
    """Where a symbolic link leads to."""


class FileRequest(Message):
    """A path, and where it may lead."""

    path: str = field(text)
    roots: list[str] | None = field(optional(many(text)), default=None)
    """The folders that it has to lie in, wherever its links lead."""
    as_root: bool = field(flag, default=False)


class FileOpened(Message):
    """What is sent from here on."""

    stat: FileStat = field(nested(FileStat))
    length: int = field(count, default=0)


class FileSent(Message):
    size: int = field(count, default=0)
    path: str = field(text, default="")
    """Of a file that was passed."""


class Read(FileRequest, Request[FileOpened, FileSent]):
    """Send a file, or a part of it; with `hand`, the open file itself is the answer (SCM_RIGHTS)."""

    OP = "read"
    offset: int = field(count, default=0)
    length: int | None = field(optional(number(-1, 2**63 - 1)), default=None)
    hand: bool = field(flag, default=False)
    kept: str | None = field(optional(text), default=None)
    """The id of a change: what is kept of it is sent, under the path of the file that was changed. A guest that does
    not know this field is asked for the folder `/`, and refuses."""


class Written(Message):
    created: bool = field(flag, default=False)
    size: int = field(count, default=0)
    path: str = field(text, default="")
    inode: int = field(clamped, default=0)
    change: FileChange | None = field(nested(FileChange), default=None)


class Write(FileRequest, Request[Nothing, Written]):
    """Put a whole file in place at once, when the last byte of stream 0 is there."""

    OP = "write"
    mode: int = field(number(0, 0o7777), default=0o644)
    sync: bool = field(flag, default=False)
    """Whether it has to be on disk before the answer."""
    id: str | None = field(optional(call_id), default=None)
    """Never write this id twice: of one that is done the answer is told again."""
    keep: str = field(text, default="")
    """With `sync`: the id by which the change can be undone."""
    expected: str | None = field(optional(text), default=None)
    """With `sync`: the version that is to be in place until then, empty for none (`version_name`). CHANGED."""


class Edited(Message):
    path: str = field(text, default="")
    line: int = field(count, default=1)
    size: int = field(count, default=0)
    change: FileChange | None = field(nested(FileChange), default=None)


class Edit(FileRequest, Request[Nothing, Edited]):
    """Replace the one occurrence of a text: stream 0 is the old one, 1 the new one."""

    OP = "edit"
    sync: bool = field(flag, default=False)
    id: str | None = field(optional(call_id), default=None)
    keep: str = field(text, default="")


class Stat(FileRequest, Request[Nothing, FileStat]):
    OP = "stat"
    follow: bool = field(flag, default=True)


class Listed(Message):
    complete: bool = field(flag, default=False)


class List(FileRequest, Request[Nothing, Listed]):
    """A folder's entries (`Entry`) as lines of JSON, depth first, in the order of their names."""

    OP = "list"
    depth: int = field(count, default=1)
    hidden: bool = field(flag, default=False)
    limit: int = field(count, default=10_000)


class Remove(FileRequest, Request[Nothing, Nothing]):
    """Remove a file or an empty folder, or with `recursive` a whole one."""

    OP = "remove"
    recursive: bool = field(flag, default=False)


# ---- ports


class Connected(Message):
    connected: bool = field(flag, default=True)


class Dial(Request[Connected, Nothing]):
    """Connect to a port of the sandbox's loopback; bytes both ways on stream 0."""

    OP = "dial"
    port: int = field(_port)


class Listening(Message):
    listening: int | None = field(_any_port, default=None)
    """The port."""


class Listen(Request[Listening, Nothing]):
    """Listen on a port of the sandbox's loopback until the channel is cancelled; 0 for a free one."""

    OP = "listen"
    port: int = field(_any_port)
    origin: bool = field(flag, default=False)
    """Whether each caller is told with where it wanted to go before it was redirected here."""
    datagrams: bool = field(flag, default=False)


class Accepted(Request[Nothing, Nothing]):
    """The one request of the guest's: a caller of a listener's port. Bytes both ways on stream 0."""

    OP = "accepted"
    STRICT = False
    listener: int = field(count, default=0)
    """The channel that listens."""
    to: tuple[str, int] | None = field(optional(pair(text, _any_port)), default=None)


class ListeningPort(Message):
    """A TCP port that something in the sandbox listens on."""

    port: int = field(_port)
    address: str = field(text, default="")
    process: str = field(text, default="")
    """What the program calls itself, as far as it can be told."""
    own: bool = field(flag, default=False)
    """The guest listens on it."""


class PortList(Message):
    ports: list[ListeningPort] = field(many(nested(ListeningPort), 256), default=())


class Ports(Request[Nothing, PortList]):
    """Which ports are listened on now."""

    OP = "ports"
