"""Writes folders to its output as a tar: `pack.py NAME=FOLDER ...`. Files, then each folder behind what is in it, then
all links; at the end what was left out. No link is followed."""

from __future__ import annotations

import io
import os
import stat
import sys
import tarfile
from collections.abc import Iterator

CHUNK = 256 * 1024
MAX_HOLE = 256 * 1024**2
DEEPEST = 200
MAX_NOTES = 1000
HIDDEN = ".cubicle-kept"
notes: list[str] = []


def leave_out(name: str, why: str) -> None:
    if len(notes) < MAX_NOTES:
        notes.append(f"{name.encode('utf-8', 'replace').decode()!r}: {why}")


def walk(folder: str, name: str, depth: int = 0) -> Iterator[tuple[str, str, os.stat_result]]:
    """Everything beneath a folder, each folder behind what is in it."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        leave_out(name, f"it cannot be looked into: {error.strerror}")
        return
    for entry in entries:
        if entry.name.startswith(HIDDEN):
            continue
        inner = f"{name}/{entry.name}"
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode):
            if depth >= DEEPEST:
                leave_out(inner, "it lies too deep")
                continue
            yield from walk(entry.path, inner, depth + 1)
        yield entry.path, inner, found


def describe(name: str, found: os.stat_result, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, found.st_mode & 0o777, int(found.st_mtime)
    return info


def add_file(tar: tarfile.TarFile, path: str, name: str) -> None:
    """Exactly as many bytes as the header says, whatever happens to the file meanwhile."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        leave_out(name, f"it cannot be read: {error.strerror}")
        return
    with open(fd, "rb", buffering=0) as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            leave_out(name, "it is not a plain file")
            return
        if found.st_size - found.st_blocks * 512 > MAX_HOLE:
            leave_out(name, "it is mostly empty space")
            return
        info = describe(name, found, tarfile.REGTYPE)
        info.size = left = found.st_size
        header = info.tobuf(tar.format, tar.encoding, tar.errors)  # Python 3.13's addfile wants the content with it
        tar.fileobj.write(header)
        tar.offset += len(header)
        while left:
            try:
                chunk = file.read(min(CHUNK, left))
            except OSError:
                chunk = b""
            if not chunk:
                leave_out(name, f"its last {left} bytes are zeros here: it became shorter while it was read")
                chunk = bytes(min(CHUNK, left))
            tar.fileobj.write(chunk)
            left -= len(chunk)
        padding = -info.size % tarfile.BLOCKSIZE
        tar.fileobj.write(bytes(padding))
        tar.offset += info.size + padding


def main() -> None:
    roots = [argument.partition("=")[::2] for argument in sys.argv[1:]]
    output = open(1, "wb", buffering=CHUNK)  # noqa: SIM115 — to the end of the program
    tar = tarfile.open(  # noqa: SIM115 — the same
        fileobj=output, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
    )
    for name, folder in roots:
        for path, inner, found in walk(folder, name):
            if stat.S_ISREG(found.st_mode):
                add_file(tar, path, inner)
            elif stat.S_ISDIR(found.st_mode):
                tar.addfile(describe(inner, found, tarfile.DIRTYPE))
            elif not stat.S_ISLNK(found.st_mode):
                leave_out(inner, "it is not a plain file")
            tar.members.clear()  # type: ignore[attr-defined]
    kept = len(notes)
    for name, folder in roots:
        for path, inner, found in walk(folder, name):
            if stat.S_ISLNK(found.st_mode):
                info = describe(inner, found, tarfile.SYMTYPE)
                try:
                    info.linkname = os.readlink(path)
                except OSError:
                    continue
                tar.addfile(info)
                tar.members.clear()  # type: ignore[attr-defined]
    del notes[kept:]
    if notes:
        text = "\n".join(["These are not in the archive, or not whole:", *notes, ""]).encode()
        info = tarfile.TarInfo("left-out.txt")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    tar.close()
    output.flush()


main()
