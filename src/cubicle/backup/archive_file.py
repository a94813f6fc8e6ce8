"""Archives of ours as files: a gzipped tar whose last member has the checksums of all the others. Blocks.

Written and read in one pass, in constant memory, by the tar and gzip of the standard library. A reader refuses what an
archive of ours never holds: names that lead out, devices, hard links, links that something comes after, sparse files,
headers without end, more bytes than it was allowed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import secrets
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from cubicle import __version__, durable
from cubicle.backup.archive_names import HEADER, HOME, OUTPUTS, SUMS, BadArchive, Place, place_of
from cubicle.record import BadRecord, Fields, parsed

CHUNK = 32 * 1024
FORMAT = "cubicle-archive"
VERSION = 1
MAX_SMALL = 64 * 1024
"""Bytes of a member that is read whole: a record."""
MAX_MEMBERS = 5_000_000
_MAX_HEADER = 64 * 1024
_MAX_LINK = 4096
_LEVEL = 1
_OWNER_ONLY = 0o600
_BROKEN = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError, OverflowError)


class ByteSource(Protocol):
    """What a tar is read from: in order, never more at once than asked for."""

    def read(self, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an archive, as its header has it."""

    place: Place
    name: str
    kind: str
    """`file`, `directory` or `link`."""
    size: int = 0
    mode: int = 0o644
    mtime: float = 0.0
    target: str = ""


class ArchiveWriter:
    """Puts members into a tar, in the order that they come, and their checksums behind them."""

    def __init__(self, output: IO[bytes], kind: str, **more: object) -> None:
        self._gzip = gzip.GzipFile(filename="", mode="wb", fileobj=output, compresslevel=_LEVEL, mtime=0)
        self._tar = tar_writer(self._gzip)
        self._sums = tempfile.TemporaryFile()  # noqa: SIM115 — closed with the writer
        fields = {"format": FORMAT, "version": VERSION, "kind": kind, "cubicle": __version__, "created": time.time()}
        self.add_record(HEADER, fields | more)

    def add_record(self, name: str, fields: dict[str, Any]) -> None:
        content = json.dumps(fields).encode()
        self.add(Member(Place(), name, "file", len(content), mtime=time.time()), [content])

    def add(self, member: Member, content: Iterable[bytes] = ()) -> None:
        """The content must have the size of the member. If it breaks off, the rest is zeros, so that others can follow,
        and what broke it off is raised."""
        hashed = _Hashed(content, member.size)
        write_member(self._tar, tar_info(member), hashed)
        text = f"{hashed.hash.hexdigest()}  {_line(member)}\n"
        self._sums.write(text.encode("utf-8", "surrogateescape"))
        if hashed.failure is not None:
            raise hashed.failure

    def finish(self) -> None:
        """Add the checksums, and the end."""
        size = self._sums.tell()
        self._sums.seek(0)
        info = tar_info(Member(Place(), SUMS, "file", size, mtime=time.time()))
        write_member(self._tar, info, iter(lambda: self._sums.read(CHUNK), b""))
        self._tar.close()
        self._gzip.close()

    def close(self) -> None:
        self._sums.close()


def tar_writer(output: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape")


def tar_info(member: Member) -> tarfile.TarInfo:
    info = tarfile.TarInfo(member.name)
    info.type = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}[member.kind]
    info.size, info.mode, info.linkname = member.size, member.mode & 0o777, member.target
    info.mtime = int(min(max(member.mtime, 0), 2**40))
    return info


def write_member(tar: tarfile.TarFile, info: tarfile.TarInfo, content: Iterable[bytes]) -> None:
    """One member, without keeping anything of it. Raises BadArchive."""
    tar.addfile(info)
    tar.members.clear()  # type: ignore[attr-defined]  # it would keep every one
    output: Any = tar.fileobj
    written = 0
    for chunk in content:
        output.write(chunk)
        written += len(chunk)
    if written != info.size:
        raise BadArchive(f"{info.name[:200]!r} does not have the size that it was said to have.")
    output.write(bytes(-written % tarfile.BLOCKSIZE))
    tar.offset += written + -written % tarfile.BLOCKSIZE


def _line(member: Member) -> str:
    """What the checksums say of a member: all that its header says."""
    more = f" -> {member.target}" if member.kind == "link" else ""
    return f"{member.kind} {member.mode & 0o777:o} {member.name}{more}".replace("\\", "\\\\").replace("\n", "\\n")


class _Hashed:
    """Content of a size, and its hash."""

    def __init__(self, content: Iterable[bytes], size: int) -> None:
        self._content = iter(content)
        self._left = size
        self.hash = hashlib.sha256()
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._next()) is not None:
            self._left -= len(chunk)
            self.hash.update(chunk)
            yield chunk

    def _next(self) -> bytes | None:
        if self.failure is None:
            try:
                return next(self._content, None)
            except Exception as error:  # noqa: BLE001 — raised again when the member is complete
                self.failure = error
        return bytes(min(CHUNK, self._left)) if self._left else None


class _Forward:
    """A source as the tar library wants one: it never goes back, and never reads more than a header at once."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._place = 0

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_HEADER:
            raise BadArchive("It holds a header that is too long.")
        found = bytearray()
        while len(found) < size and (chunk := self._source.read(size - len(found))):
            found += chunk
        self._place += len(found)
        return bytes(found)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or place < self._place:
            raise BadArchive("It is not in order.")
        while self._place < place:
            if not self.read(min(CHUNK, place - self._place)):
                raise BadArchive("It ends too early.")
        return self._place


class TarMembers:
    """The members of a tar that a stranger wrote, checked; each is read before the next."""

    def __init__(self, source: ByteSource, max_bytes: int, prefix: str = "") -> None:
        """`prefix` is put before each name; `max_bytes` is for the content of all members together."""
        self._left = max_bytes
        self._prefix = prefix
        self._source = _Forward(source)
        self._linked = ""
        self._seen = 0
        self._tar: tarfile.TarFile | None = None
        self._info: tarfile.TarInfo | None = None

    def __iter__(self) -> Iterator[Member]:
        with translated():
            source: Any = self._source
            self._tar = tarfile.TarFile(fileobj=source, mode="r", encoding="utf-8", errors="surrogateescape")
            while (info := self._next(self._tar)) is not None:
                yield self._checked(info)

    def _next(self, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        self._info = tar.next()
        tar.members.clear()  # type: ignore[attr-defined]  # it would keep every one
        if tar.pax_headers:
            raise BadArchive("It holds headers that do not belong there.")
        return self._info

    def _checked(self, info: tarfile.TarInfo) -> Member:
        name = f"{self._prefix}{info.name}"
        place = place_of(name)
        kind = "file" if info.isreg() else "directory" if info.isdir() else "link" if info.issym() else ""
        if not kind or info.sparse is not None or info.type == tarfile.CONTTYPE:
            raise BadArchive(f"It holds something that is neither a file nor a folder: {name[:200]!r}.")
        if kind == "link" and (place.area not in (HOME, OUTPUTS) or not 0 < len(info.linkname) <= _MAX_LINK):
            raise BadArchive(f"It holds a link where none may be: {name[:200]!r}.")
        if kind != "link" and self._linked and place.chat == self._linked and place.area in (HOME, OUTPUTS):
            raise BadArchive(f"It holds a file behind a link: {name[:200]!r}.")
        if kind == "link":
            self._linked = place.chat
        size = info.size if kind == "file" else 0
        if size < 0 or (kind != "file" and info.size):
            raise BadArchive(f"{name[:200]!r} has a size that cannot be.")
        self._left -= size
        self._seen += 1
        if self._left < 0 or self._seen > MAX_MEMBERS:
            raise BadArchive("It holds more than there may be.")
        mtime = info.mtime if 0 <= info.mtime < 2**40 else 0
        return Member(place, name, kind, size, info.mode & 0o777, float(mtime), info.linkname if kind == "link" else "")

    def content(self) -> Iterator[bytes]:
        """The bytes of the member that was read last. Raises BadArchive."""
        info = self._info
        assert info is not None
        with translated():
            self._source.seek(info.offset_data)
            left = info.size if info.isreg() else 0
            while left:
                chunk = self._source.read(min(CHUNK, left))
                if not chunk:
                    raise BadArchive("It ends too early.")
                left -= len(chunk)
                yield chunk


class ArchiveReader:
    """One pass over an archive. Its end is reached only if all checksums hold."""

    def __init__(self, file: IO[bytes], max_bytes: int) -> None:
        file.seek(0)
        self._gzip = gzip.GzipFile(fileobj=file, mode="rb")
        self._members = TarMembers(self._gzip, max_bytes)
        self._sums = hashlib.sha256()
        self.header = Fields({})
        self._reading: Iterator[bytes] | None = None
        self._hash = hashlib.sha256()

    def __iter__(self) -> Iterator[Member]:
        """Every member but the header and the checksums. Raises BadArchive."""
        number, ended = 0, False
        for member in self._members:
            if ended:
                raise BadArchive("Something comes after its checksums.")
            if (number == 0) is not (member.name == HEADER):
                raise BadArchive("It is no archive of Cubicle.")
            number += 1
            if member.name == SUMS:
                self._compare()
                ended = True
                continue
            self._hash, self._reading = hashlib.sha256(), self._hashed()
            if member.name == HEADER:
                self.header = _header(self.small(member))
            else:
                yield member
            for _ in self._reading:
                pass
            line = f"{self._hash.hexdigest()}  {_line(member)}\n"
            self._sums.update(line.encode("utf-8", "surrogateescape"))
        if not ended:
            raise BadArchive("It ends too early: its checksums are missing.")
        with translated():  # the rest of the compressed file has a checksum of its own
            while self._gzip.read(CHUNK):
                pass

    def content(self) -> Iterator[bytes]:
        """The bytes of the member that came last; what is not taken is passed over."""
        assert self._reading is not None
        return self._reading

    def small(self, member: Member) -> Fields:
        """A record. Raises BadArchive."""
        if member.kind != "file" or member.size > MAX_SMALL:
            raise BadArchive(f"{member.name[:200]!r} is too large to be a record.")
        try:
            found = parsed(b"".join(self.content()))
        except BadRecord as error:
            raise BadArchive(f"{member.name[:200]!r} cannot be used: {error}.") from None
        if not isinstance(found, dict):
            raise BadArchive(f"{member.name[:200]!r} cannot be used: it is not a JSON object.")
        return Fields(found)

    def _hashed(self) -> Iterator[bytes]:
        for chunk in self._members.content():
            self._hash.update(chunk)
            yield chunk

    def _compare(self) -> None:
        said = hashlib.sha256()
        for chunk in self._members.content():
            said.update(chunk)
        if said.digest() != self._sums.digest():
            raise BadArchive("Its checksums do not hold: it was changed, or is damaged.")


def _header(fields: Fields) -> Fields:
    try:
        if fields.text("format", 100) != FORMAT:
            raise BadArchive("It is no archive of Cubicle.")
        if fields.whole("version", 1) > VERSION + 1:
            raise BadArchive("It was made by a newer version of Cubicle.")
        fields.text("kind", 100)
    except BadRecord:
        raise BadArchive("It is no archive of Cubicle.") from None
    return fields


@contextmanager
def translated() -> Iterator[None]:
    """What the libraries say of a broken file, in our words. Raises BadArchive."""
    try:
        yield
    except _BROKEN:
        raise BadArchive("It is no archive, or is damaged.") from None


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file of its owner's only that has its name when the block ends, on disk; an existing one is never replaced."""
    if os.path.lexists(path):
        raise FileExistsError(17, "There is a file of that name already", str(path))
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _OWNER_ONLY)
        with open(fd, "w+b") as file:
            yield file
            file.flush()
            os.fsync(fd)
        try:
            os.link(part, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            os.rename(part, path)
        durable.sync_folder(path.parent)
    finally:
        with suppress(OSError):
            part.unlink()


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A plain file. Raises BadArchive, and OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadArchive("It is not a plain file.")
        yield file
