"""Writes the members of a tar on its input to folders: `unpack.py NAME=FOLDER ...`. They take the place of files that a
new sandbox has, and no link is followed to a file. Its output is one line: how many there were, or what failed."""

from __future__ import annotations

import os
import sys
import tarfile

CHUNK = 256 * 1024


def make_room(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
        os.unlink(path)


def write_file(tar: tarfile.TarFile, info: tarfile.TarInfo, path: str) -> None:
    make_room(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb", buffering=0) as file:
        source = tar.extractfile(info)
        while source is not None and (chunk := source.read(CHUNK)):
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]
        os.fchmod(fd, info.mode & 0o777)
        os.utime(fd, (info.mtime, info.mtime))


def main() -> str:
    folders = dict(argument.split("=", 1) for argument in sys.argv[1:])
    count = 0
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]
            area, _, inner = info.name.partition("/")
            path = os.path.join(folders[area], inner) if inner else folders[area]
            if info.issym():
                make_room(path)
                os.symlink(info.linkname, path)
            elif info.isdir():
                os.makedirs(path, exist_ok=True)
                os.chmod(path, info.mode & 0o777)
                os.utime(path, (info.mtime, info.mtime))
            else:
                write_file(tar, info, path)
            count += 1
    # Whoever ends before the end of the input has failed, for who writes it.
    while sys.stdin.buffer.read(CHUNK):
        pass
    return f"unpacked {count}"


try:
    sys.stdout.write(main())
except OSError as error:
    sys.stdout.write(f"{error.strerror}: {os.path.basename(os.fsdecode(error.filename or b'?'))!r}"[:300])
    sys.exit(1)
