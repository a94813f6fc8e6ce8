"""API_KEYS_FILE on disk: read, changed under a lock, and read again when it changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from cubicle import durable
from cubicle.core import api_keys
from cubicle.core.api_keys import ApiKey, BadKeys, KeyFile
from cubicle.core.keys import KeyRing
from cubicle.tasks import repeated

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
MAX_SIZE = 64 * 1024**2
_OLD_FORM = (
    "API_KEYS_FILE shows its keys as they are: whoever reads it has them. "
    "`cubicle keys hash` puts digests in their place; the keys go on working"
)


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where the keys of a service come from."""

    path: Path | None = None
    single_key: str = ""
    pepper: bytes = b""

    def read(self) -> KeyRing:
        """All keys. Raises BadKeys. Blocks."""
        text = _read(self.path) if self.path is not None else ""
        if self.path is not None and not text.strip():
            raise BadKeys("API_KEYS_FILE is empty: make a key with `cubicle keys add`.")
        ring = KeyRing.parse(self.single_key, text, pepper=self.pepper)
        if self.path is not None and not len(ring):
            raise BadKeys("API_KEYS_FILE holds no key, and there is no MCP_API_KEY: make one with `cubicle keys add`.")
        if ring.shows_keys:
            log.warning(_OLD_FORM)
        return ring

    def seen(self) -> tuple[int, ...] | None:
        """What changes when the file does; None when it is not there."""
        if self.path is None:
            return None
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class KeyFileWatch:
    """Reads the file again when it changes. A file that cannot be used, or is gone, changes nothing but the log."""

    def __init__(self, seen: tuple[int, ...] | None, source: KeySource, seconds: float = WATCH_SECONDS) -> None:
        """`seen`: what the file was before it was read."""
        self.ring = KeyRing({})
        """That which takes the keys."""
        self.changed: Callable[[str, ApiKey], None] = lambda change, key: None
        """Called with each key that was added, changed or removed."""
        self._source = source
        self._seconds = seconds
        self._seen = seen

    async def look(self) -> None:
        """Take the keys of the file if it is another one than before."""
        seen = await asyncio.to_thread(self._source.seen)
        if seen == self._seen:
            return
        self._seen = seen
        if seen is None:
            log.error("API_KEYS_FILE is gone or cannot be read: the keys from before stay in use until it is back")
            return
        try:
            ring = await asyncio.to_thread(self._source.read)
        except BadKeys as error:
            log.error("API_KEYS_FILE cannot be used, and the keys from before stay in use: %s", error)
            return
        changes = self.ring.changes(ring)
        self.ring.replace(ring)
        for change, key in changes:
            self.changed(change, key)
        log.info("API_KEYS_FILE was read again", extra={"keys": len(ring)})

    def running(self) -> AbstractAsyncContextManager[None]:
        if self._source.path is None:
            return nullcontext()
        return repeated(self.look, self._seconds, name="watch API_KEYS_FILE")


def read_file(path: Path) -> KeyFile:
    """What the file holds; an empty one where there is none. Raises BadKeys. Blocks."""
    if not path.exists():
        return KeyFile.empty()
    text = _read(path)
    return api_keys.parse(text) if text.strip() else KeyFile.empty()


def change_file(path: Path, change: Callable[[KeyFile], KeyFile]) -> KeyFile:
    """Write the file anew, on disk when this returns; who changes it at the same time waits. Raises BadKeys."""
    path = path.resolve()  # a link stays one
    durable.make_folder(path.parent)
    with durable.locked(path.with_name(f".{path.name}.lock")):
        before = path.stat() if path.exists() else None
        changed = change(read_file(path))
        mode = stat.S_IMODE(before.st_mode) if before is not None else 0o600
        durable.write(path, changed.text().encode(), mode=mode)
        if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
            with contextlib.suppress(PermissionError):
                os.chown(path, before.st_uid, before.st_gid)
    return changed


def _read(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadKeys("API_KEYS_FILE is not a plain file.")
            content = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise BadKeys(f"API_KEYS_FILE cannot be read: {error.strerror}.") from None
    if len(content) > MAX_SIZE:
        raise BadKeys(f"API_KEYS_FILE is larger than {MAX_SIZE >> 20} MiB.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadKeys("API_KEYS_FILE is not UTF-8 text.") from None
