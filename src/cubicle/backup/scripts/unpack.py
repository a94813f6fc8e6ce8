"""Writes the members of a tar on its input to folders: `unpack.py NAME=FOLDER ...`. They take the place of files that a
new sandbox has, and no link is followed to a file. Its output is one line: how many there were, or what failed."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile

CHUNK = 256 * 1024


def make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except (FileExistsError, NotADirectoryError):  # the new sandbox has a file there, or on the way
        above = path
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        os.unlink(above)
        os.makedirs(path)


def make_room(path: str) -> None:
    make_folder(os.path.dirname(path))
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def make_link(target: str, path: str) -> None:
    """Folders come before links: its own may be one by now that nobody may write."""
    folder = os.path.dirname(path)
    make_folder(folder)
    found = os.stat(folder)
    is_closed = found.st_mode & 0o300 != 0o300
    if is_closed:
        os.chmod(folder, found.st_mode & 0o777 | 0o300)
    make_room(path)
    os.symlink(target, path)
    if is_closed:
        os.chmod(folder, found.st_mode & 0o777)
        os.utime(folder, ns=(found.st_atime_ns, found.st_mtime_ns))


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
                make_link(info.linkname, path)
            elif info.isdir():
                make_folder(path)
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
