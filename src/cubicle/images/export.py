"""A built image as a tar stream that `docker import` takes: owners counted from 0 again, names in order."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import IO

from cubicle.images.store import SUBUID_START, BuiltImage


def write_tar(base: BuiltImage, output: IO[bytes]) -> int:
    """Write the root of an image to a stream, file by file; the number of entries written."""
    root = base.rootfs
    count = 0
    with tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name in _names(str(root)):
            tar.add(os.path.join(root, name), arcname=name, recursive=False, filter=_owned_from_zero)
            count += 1
            # tarfile remembers every entry for a later look-up, and nobody looks here.
            tar.members.clear()  # type: ignore[attr-defined]
    return count


def docker_changes(base: BuiltImage) -> list[str]:
    """Arguments of `docker import` that give the image what a tar cannot carry."""
    settings = [f"ENV {name}={value}" for name, value in base.environment.items()]
    settings += ["WORKDIR /home/assistant", "USER assistant", 'CMD ["/bin/bash"]']
    return [word for setting in settings for word in ("--change", setting)]


def _names(root: str) -> Iterator[str]:
    for parent, folders, files in os.walk(root):
        folders.sort()
        inside = os.path.relpath(parent, root)
        if inside != ".":
            yield inside
        # os.walk counts a link to a folder as a folder, and does not enter it.
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in sorted(files + links):
            yield os.path.normpath(os.path.join(inside, name))


def _owned_from_zero(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid -= SUBUID_START
    entry.gid -= SUBUID_START
    # Names of the host's users mean nothing in the image.
    entry.uname = entry.gname = ""
    return entry
