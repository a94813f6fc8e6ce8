"""The records of members on one host: a table of owners, and for each member a lock and a socket, in one folder.

A member holds its lock for as long as its process lives: the kernel lets go of it at the same moment in which the
process ends, so a member that is dead is never taken for alive, nor one that only hangs for dead. Nothing here has to
outlive the service: the parent of the members empties the folder before it starts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from cubicle.members.records import NoRecords, Ownership

FOLDER = "members"
"""In DATA_DIR."""
_TABLE = "owners.sqlite3"
_LOCK, _SOCKET = ".lock", ".sock"
_BUSY_SECONDS = 10.0
_BACKLOG = 4096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS owners(digest TEXT PRIMARY KEY, holder TEXT NOT NULL, epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_holder ON owners(holder);
"""

_Found = TypeVar("_Found")


def prepare(data_dir: Path) -> Path:
    """The folder, empty: no member runs. Blocks. Raises OSError."""
    folder = data_dir / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    try:
        _connect(folder).close()
    except sqlite3.Error as error:
        raise OSError(f"The records of members cannot be made in {folder}: {error}") from None
    return folder


class DiskRecords:
    """One member's view of them. `slot` is its number among the workers of the service, from 1."""

    lapsed = False

    def __init__(self, folder: Path, slot: int) -> None:
        self._folder = folder
        self.name = f"{slot}-{secrets.token_hex(4)}"
        self._lock: int | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="members")
        self._table: sqlite3.Connection | None = None

    async def open(self) -> socket.socket:
        return await self._run(self._open)

    def _open(self) -> socket.socket:
        self._table = _connect(self._folder)
        hidden = self._folder / f".{self.name}"
        self._lock = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden.rename(self._folder / f"{self.name}{_LOCK}")  # from its first moment under this name it is locked
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with _short(self._folder) as folder:
            listening.bind(f"{folder}/{self.name}{_SOCKET}")
        listening.listen(_BACKLOG)
        return listening

    async def close(self) -> None:
        with contextlib.suppress(NoRecords):
            await self._run(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        """One that leaves chats is not buried here: others see its lock, which nobody holds, and take them over."""
        try:
            if not self._execute("SELECT 1 FROM owners WHERE holder = ? LIMIT 1", self.name).fetchall():
                self._forget(self.name)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._table is not None:
            self._table.close()

    async def owner(self, digest: str) -> Ownership | None:
        return await self._run(lambda: self._owner(digest))

    def _owner(self, digest: str) -> Ownership | None:
        row = self._execute("SELECT holder, epoch FROM owners WHERE digest = ?", digest).fetchone()
        return None if row is None else Ownership(str(row[0]), int(row[1]))

    async def take(self, digest: str, seen: Ownership | None) -> Ownership:
        return await self._run(lambda: self._take(digest, seen))

    def _take(self, digest: str, seen: Ownership | None) -> Ownership:
        if seen is None:
            self._execute("INSERT OR IGNORE INTO owners VALUES (?, ?, 1)", digest, self.name)
        else:
            statement = "UPDATE owners SET holder = ?, epoch = epoch + 1 WHERE digest = ? AND holder = ? AND epoch = ?"
            self._execute(statement, self.name, digest, seen.holder, seen.epoch)
        owner = self._owner(digest)
        if owner is None:
            raise NoRecords("The chat changes hands at this moment.")
        return owner

    async def release(self, epochs: Mapping[str, int]) -> None:
        def release() -> None:
            assert self._table is not None
            rows = [(digest, self.name, epoch) for digest, epoch in epochs.items()]
            self._table.executemany("DELETE FROM owners WHERE digest = ? AND holder = ? AND epoch = ?", rows)

        await self._run(release)

    async def owned_by(self, holder: str) -> Sequence[str]:
        statement = "SELECT digest FROM owners WHERE holder = ?"
        return await self._run(lambda: [str(row[0]) for row in self._execute(statement, holder)])

    async def is_alive(self, holder: str) -> bool:
        return holder == self.name or await self._run(lambda: self._is_alive(holder))

    def _is_alive(self, holder: str) -> bool:
        """Never of its own: a process that closes the file lets go of the lock."""
        try:
            lock = os.open(self._folder / f"{holder}{_LOCK}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
        finally:
            os.close(lock)
        return False

    async def living(self) -> Sequence[str]:
        names = await self._run(self._names)
        return [name for name in names if await self.is_alive(name)]

    def _names(self) -> Sequence[str]:
        return sorted(path.name.removesuffix(_LOCK) for path in self._folder.glob(f"[!.]*{_LOCK}"))

    async def bury(self, holder: str) -> None:
        await self._run(lambda: self._forget(holder))

    async def dead(self) -> Sequence[str]:
        """Members that ended, and were not buried."""
        names = await self._run(self._names)
        return [name for name in names if not await self.is_alive(name)]

    def _forget(self, holder: str) -> None:
        for ending in (_SOCKET, _LOCK):
            with contextlib.suppress(FileNotFoundError):
                (self._folder / f"{holder}{ending}").unlink()

    async def dial(self, holder: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with _short(self._folder) as folder:
                await asyncio.get_running_loop().sock_connect(sock, f"{folder}/{holder}{_SOCKET}")
        except BaseException:
            sock.close()
            raise
        return sock

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if self._table is None:
            raise NoRecords("This member is not open.")
        return self._table.execute(statement, values)

    async def _run(self, work: Callable[[], _Found]) -> _Found:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise NoRecords("The records of members cannot be used at present.", f"{error}.") from error
        except OSError as error:  # no descriptors are left, say
            raise NoRecords(
                "The records of members cannot be used at present.", f"{error.strerror or error}."
            ) from error
        except RuntimeError as error:  # the thread has ended
            raise NoRecords("This member is closed.") from error


def _connect(folder: Path) -> sqlite3.Connection:
    """What a process wrote before it was killed is there; what a host lost with its power is not needed."""
    table = sqlite3.connect(folder / _TABLE, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    table.execute("PRAGMA journal_mode=WAL")
    table.execute("PRAGMA synchronous=OFF")
    table.executescript(_SCHEMA)
    return table


class _short:
    """A name for a folder that fits into the address of a socket, however long its path is."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *exception: object) -> None:
        os.close(self._fd)
