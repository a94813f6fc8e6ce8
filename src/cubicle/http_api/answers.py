"""The JSON answers that the pages read, as types. web/src/common/api.generated.ts is generated from these."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from cubicle.agents.sessions import ProcessRecord, SessionRecord, TranscriptRecord
from cubicle.browser.server_messages import TabRecord
from cubicle.files.browse import Root
from cubicle.machine.files import EntryKind
from cubicle.sandbox.driver import Condition


class TerminalStatus(TypedDict):
    """GET /terminal/<chat>/status"""

    running: bool
    port: int
    sandbox: Condition


class BrowserStatus(TypedDict):
    """GET /browser/<chat>/status"""

    running: bool
    pages: list[TabRecord]
    sandbox: Condition


class SessionList(TypedDict):
    """GET /terminal/<chat>/sessions"""

    sessions: list[SessionRecord]


class ProcessList(TypedDict):
    """GET /terminal/<chat>/processes"""

    processes: list[ProcessRecord]


TranscriptPage = TranscriptRecord
"""GET /terminal/<chat>/sessions/<id>"""


class FileEntry(TypedDict):
    """One entry of a listing; `url` is relative to the root of the service or absolute, as the service is set up."""

    name: str
    kind: EntryKind
    size: int
    modified: str
    root: Root
    url: str


class FileListing(TypedDict):
    """GET /files/<chat>/ and every folder below it"""

    path: str
    entries: list[FileEntry]
    complete: bool


class RawGrant(TypedDict):
    """POST /api/chats/<chat>/raw/<path>: `folder` is what the page can read; empty: all of the chat"""

    url: str
    folder: str


class UploadRecord(TypedDict):
    """POST /api/uploads/<chat>/<name>"""

    filename: str
    path: str
    size: int
    sha256: str | None
    uri: str
    mimeType: str


class UploadList(TypedDict):
    """GET /api/uploads/<chat>"""

    files: list[UploadRecord]
    complete: NotRequired[Literal[False]]


class SandboxRow(TypedDict):
    """One sandbox; what it uses is there only while it can be asked."""

    chat: str
    state: Condition
    reason: str
    age_seconds: float | None
    idle_seconds: float
    connections: int
    user: str
    last_tool: str
    cpu_seconds: NotRequired[float | None]
    cpu_percent: NotRequired[float | None]
    memory_bytes: NotRequired[int | None]
    disk_bytes: NotRequired[int | None]
    processes: NotRequired[int | None]


class TrashRow(TypedDict):
    """One removed sandbox."""

    chat: str
    removed_at: float
    reason: str
    disk_bytes: int | None


class Totals(TypedDict):
    """The last two come when there is something in the trash."""

    sandboxes: int
    running: int
    in_trash: NotRequired[int]
    MB_in_trash: NotRequired[int]


class SandboxTable(TypedDict):
    """GET /api/sandboxes"""

    sandboxes: list[SandboxRow]
    trash: list[TrashRow]
    totals: Totals


class PageFacts(TypedDict, total=False):
    """What some pages are given."""

    chat: str
    path: str
    raw: str
    sandbox: str
    embed: bool
    run: bool
    next: str
    message: str
    locked: bool


class PageData(TypedDict):
    """What every page is given with its HTML, as the `data-page` of its body."""

    root: str
    assets: str
    chat: str
    path: str
    raw: str
    sandbox: str
    embed: bool
    run: bool
    next: str
    message: str
    locked: bool
