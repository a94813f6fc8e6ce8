"""A chat's uploaded files. The folder is the truth: nothing else remembers what was uploaded."""

from __future__ import annotations

from dataclasses import dataclass

from cubicle.rules.chats import Chat
from cubicle.rules.media import is_text, media_type
from cubicle.rules.resources import NoSuchResource
from cubicle.sandbox.fleet import Fleet, NoSandbox
from cubicle.sandbox.machine import MachineError

FOLDER = "/mnt/user-data/uploads"
LARGEST_READ = 64 * 1024**2
_MOST_LISTED = 10_000
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Upload:
    """One file beneath the folder."""

    path: str
    size: int
    mtime: float

    @property
    def name(self) -> str:
        """The file's own name; bytes in it that are no text are replaced."""
        return self.path.rpartition("/")[2].encode("utf-8", "replace").decode()

    @property
    def media_type(self) -> str:
        return media_type(self.name)


@dataclass(frozen=True, slots=True)
class Content:
    """A file's bytes; its text too, where its type says that it is text and the bytes agree."""

    media_type: str
    data: bytes
    text: str | None


class Uploads:
    """Reads the folder through the sandbox that it belongs to; a chat without a sandbox has no files."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def list(self, chat: Chat) -> list[Upload]:
        try:
            async with self._fleet.lease(chat, create=False) as machine:
                return [
                    Upload(entry.path, entry.size, entry.mtime)
                    async for entry in machine.list(
                        FOLDER, depth=_DEEPEST, hidden=True, limit=_MOST_LISTED, roots=(FOLDER,)
                    )
                    if entry.kind == "file"
                ]
        except (NoSandbox, MachineError):
            return []

    async def read(self, chat: Chat, path: str) -> Content:
        """Raises NoSuchResource when there is no such file, or it is too big to be answered whole."""
        try:
            async with self._fleet.lease(chat, create=False) as machine:
                data = await machine.read_bytes(f"{FOLDER}/{path}", limit=LARGEST_READ, roots=(FOLDER,))
        except (NoSandbox, MachineError):
            raise NoSuchResource from None
        kind = media_type(path)
        return Content(kind, data, _decoded(data) if is_text(kind) else None)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8", "replace")
