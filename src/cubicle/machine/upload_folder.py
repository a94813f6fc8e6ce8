"""A sandbox's uploads folder where it lies on this host: what is uploaded is written there without a detour.

Only the guest and the service can write the folder, yet nothing in it is trusted: every step goes through a folder
that is held open, and no link is followed. The file has no name until it is whole, so whatever breaks off is gone.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from cubicle.guest.atomic_write import TEMPORARY

_MAX_CONCURRENT = 512  # pieces that one call of the kernel may take; it allows 1,024
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UploadFolder:
    """The folder for as long as the sandbox is up. Blocking; runs in threads. Errors are the operating system's."""

    def __init__(self, path: Path, owner: int) -> None:
        self._path = path
        self._owner = owner
        self._drafts: set[UploadDraft] = set()
        self._lock = threading.Lock()
        self._ended = False

    def draft(self, path: str) -> UploadDraft:
        """Begin a file; missing folders are made."""
        try:
            with self._lock:
                if self._ended:
                    raise OSError(errno.ESTALE, "the sandbox is no longer up")
                draft = UploadDraft(self._open(path), path, self._owner, self._forget)
                self._drafts.add(draft)
                return draft
        except OSError:
            self.prune(path)
            raise

    def end(self) -> None:
        """The sandbox goes down: nothing of its disk stays open here, whoever is still sending."""
        with self._lock:
            self._ended = True
            drafts = list(self._drafts)
        for draft in drafts:
            draft.close()

    def prune(self, path: str) -> None:
        """The file is gone: so are the folders that only led to it, unless another is on its way into them."""
        with self._lock, suppress(OSError):  # one that is not empty stays
            while "/" in path and not self._ended:
                path, _, _ = path.rpartition("/")
                if any(draft.path.startswith(f"{path}/") for draft in self._drafts):
                    return
                folder = self._open(path, makes=False)
                try:
                    os.rmdir(os.path.basename(path), dir_fd=folder)
                finally:
                    os.close(folder)

    def _forget(self, draft: UploadDraft) -> None:
        with self._lock:
            self._drafts.discard(draft)
        if not draft.published:
            self.prune(draft.path)

    def _open(self, path: str, *, makes: bool = True) -> int:
        """The folder that the file lies in, or comes into."""
        folder = os.open(self._path, _FOLDER)
        for part in path.split("/")[:-1]:
            try:
                if makes:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=folder)
                        os.chown(part, self._owner, self._owner, dir_fd=folder, follow_symlinks=False)
                        _sync(folder)
                inner = os.open(part, _FOLDER, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder


class Hasher(Protocol):
    """One of hashlib's."""

    def update(self, data: memoryview, /) -> None: ...


class UploadDraft:
    """One file on its way. A closed one takes no more: OSError with ESTALE.

    One thread may write while another one sums up what is there.
    """

    def __init__(self, folder: int, path: str, owner: int, forget: Callable[[UploadDraft], None]) -> None:
        self.path = path
        self.published = False
        self._folder = folder
        self._name = os.path.basename(path)
        self._owner = owner
        self._forget = forget
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._fd = -1
        try:
            self._check_name()
            self._fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
        except OSError:
            os.close(folder)
            raise

    def check(self) -> None:
        """Raises OSError with ESTALE once it is closed."""
        if self._fd < 0:
            raise OSError(errno.ESTALE, "the sandbox is no longer up")

    def write(self, chunks: Sequence[bytes | memoryview]) -> None:
        with self._lock:
            for start in range(0, len(chunks), _MAX_CONCURRENT):
                self._write(list(chunks[start : start + _MAX_CONCURRENT]))

    def drain(self, pipe: int, count: int) -> None:
        """Write what a pipe holds, so many bytes, which do not come by this process."""
        with self._lock:
            self.check()
            while count:
                count -= os.splice(pipe, self._fd, count)

    def add_to(self, digest: Hasher, start: int, stop: int) -> None:
        """Sum up what is written from `start` to `stop`, where it lies.

        Nobody else has the file, so nobody shortens it under the mapping.
        """
        with self._reading:
            self.check()
            page = start - start % mmap.ALLOCATIONGRANULARITY
            with (
                mmap.mmap(self._fd, stop - page, mmap.MAP_SHARED, mmap.PROT_READ, offset=page) as mapped,
                memoryview(mapped) as view,
                view[start - page :] as part,
            ):
                digest.update(part)
            # The file is put on disk before it gets its name; this begins with that.
            os.posix_fadvise(self._fd, start, stop - start, os.POSIX_FADV_DONTNEED)

    def publish(self) -> os.stat_result:
        """Put the file on disk and give it its name at once, in place of what has it; what it is now.

        After a power cut the name has the whole file, or what it had before; once this returns, the whole file.
        """
        with self._lock:
            self.check()
            os.fchmod(self._fd, 0o644)
            os.fchown(self._fd, self._owner, self._owner)
            os.fsync(self._fd)
            own = TEMPORARY + os.urandom(8).hex()
            os.link(f"/proc/self/fd/{self._fd}", own, dst_dir_fd=self._folder, follow_symlinks=True)
            try:
                os.rename(own, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except OSError:
                os.unlink(own, dir_fd=self._folder)
                raise
            self.published = True
            _sync(self._folder)
            return os.fstat(self._fd)

    def close(self) -> None:
        """Let go; what was not published leaves nothing. Waits for what is under way."""
        with self._reading, self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                os.close(self._folder)
                self._fd = -1
        self._forget(self)

    def _write(self, chunks: list[bytes | memoryview]) -> None:
        self.check()
        sent = os.writev(self._fd, chunks)
        if sent < sum(map(len, chunks)):  # rare: the disk is nearly full, or a signal came
            rest = memoryview(b"".join(chunks))[sent:]
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def _check_name(self) -> None:
        with suppress(FileNotFoundError):
            found = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, "it is a directory")


def _sync(folder: int) -> None:
    """Put the names in a folder that is held open, though not for reading, on disk."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
