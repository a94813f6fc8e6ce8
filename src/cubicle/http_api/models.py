"""The JSON answers of the HTTP API. Handlers build them; the OpenAPI document has their schemas."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from cubicle.agents.sessions import ProcessRecord, SessionRecord
from cubicle.browser.server_messages import TabRecord
from cubicle.files.browse import Root
from cubicle.journal.timeline import Step
from cubicle.sandbox.driver import Condition

EntryKind = Literal["file", "directory", "symlink", "other"]
"""`other`: a pipe, socket or device."""

_exact = with_config(ConfigDict(extra="forbid"))


@_exact
class ProblemDetails(TypedDict):
    """Every error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    reason: NotRequired[str]
    """Why the sandbox is stopped."""


@_exact
class Health(TypedDict):
    status: Literal["healthy"]


@_exact
class ToolInfo(TypedDict):
    name: str
    description: str


@_exact
class HeaderInfo(TypedDict):
    name: str
    required: bool
    purpose: str


@_exact
class McpInfo(TypedDict):
    name: str
    version: str
    protocol_versions: list[str]
    endpoint: str
    tools: list[ToolInfo]
    headers: list[HeaderInfo]


class ProtectedResource(TypedDict):
    """RFC 9728."""

    resource: str
    authorization_servers: list[str]
    bearer_methods_supported: list[str]
    resource_name: str
    scopes_supported: NotRequired[list[str]]


@_exact
class SkillInfo(TypedDict):
    name: str
    description: str
    location: str
    source: str


@_exact
class SkillList(TypedDict):
    skills: list[SkillInfo]


@_exact
class SkillMount(TypedDict):
    name: str
    target: str
    mode: Literal["ro"]


@_exact
class SkillMounts(TypedDict):
    mounts: list[SkillMount]


@_exact
class DiskSpace(TypedDict):
    enough: bool
    short_since: str | None
    free_bytes: int
    floor_bytes: int
    total_bytes: int
    inodes_left: bool


@_exact
class IsolationFinding(TypedDict):
    wall: str
    attempt: str
    verdict: str
    said: str


@_exact
class IsolationReport(TypedDict):
    strength: str
    holds: bool
    attempts: int
    not_checked: NotRequired[int]
    findings: list[IsolationFinding]
    checked_at: str | None


@_exact
class UploadedFile(TypedDict):
    filename: str
    path: str
    size: int
    sha256: str | None
    uri: str
    mimeType: str


@_exact
class UploadList(TypedDict):
    files: list[UploadedFile]
    complete: NotRequired[bool]


@_exact
class FolderEntry(TypedDict):
    name: str
    kind: EntryKind
    size: int
    modified: str
    root: Root
    url: str


@_exact
class FolderListing(TypedDict):
    path: str
    entries: list[FolderEntry]
    complete: bool


@_exact
class RawUrl(TypedDict):
    url: str
    folder: str


@_exact
class BrowserStatus(TypedDict):
    running: bool
    pages: list[TabRecord]
    sandbox: Condition


@_exact
class ProgramStarted(TypedDict):
    running: bool
    started: bool
    """False: it ran before."""


@_exact
class TerminalStatus(TypedDict):
    running: bool
    port: int
    sandbox: Condition


@_exact
class SessionList(TypedDict):
    sessions: list[SessionRecord]


@_exact
class SessionResumed(TypedDict):
    resumed: bool
    session_id: str


@_exact
class ProcessList(TypedDict):
    processes: list[ProcessRecord]


@_exact
class ProcessKilled(TypedDict):
    killed: bool
    pid: int


@_exact
class EarlierCalls(TypedDict):
    events: list[Any]
    """Those of the event stream."""
    more: bool
    """There are still earlier ones."""


@_exact
class ChangeSide(TypedDict):
    hash: str
    text: str | None
    """Null for a file that is no text."""


@_exact
class FileSides(TypedDict):
    path: str
    sides: list[ChangeSide]


@_exact
class FileUndone(TypedDict):
    path: str
    undone: bool
    """False: the change was made again."""
    size: int | None
    """Of the file as it is now; null: there is none any more."""


@_exact
class SandboxState(TypedDict):
    sandbox: Condition


@_exact
class WebhookReceiver(TypedDict):
    """One receiver of webhooks."""

    name: str
    host: str
    """Of its URL no more than scheme and host."""
    events: list[str]
    tenants: list[str]
    waiting: int
    dead: int
    failing: str
    """Why the last attempt failed; empty if it did not."""


@_exact
class WebhookLetter(TypedDict):
    """A message that was given up."""

    id: str
    type: str
    tenant: str
    at: float
    receiver: str
    attempts: int
    error: str


@_exact
class WebhookOverview(TypedDict):
    receivers: list[WebhookReceiver]
    dead: list[WebhookLetter]
    """The newest 200."""
    dropped: int
    """Dead letters that were dropped since the queue was made, as there were too many."""


@_exact
class WebhooksRetried(TypedDict):
    retried: int


@_exact
class SandboxStopped(TypedDict):
    stopped: bool
    chat: str


@_exact
class SandboxRow(TypedDict):
    """One line of the operator's table. Without the last five when the sandbox does not answer."""

    chat: str
    tenant: str
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


@_exact
class TrashRow(TypedDict):
    chat: str
    tenant: str
    removed_at: float
    reason: str
    disk_bytes: int | None


@_exact
class SandboxTotals(TypedDict):
    sandboxes: int
    running: int
    in_trash: NotRequired[int]
    MB_in_trash: NotRequired[int]


@_exact
class SandboxList(TypedDict):
    sandboxes: list[SandboxRow]
    trash: list[TrashRow]
    totals: SandboxTotals


@_exact
class ChatLink(TypedDict):
    """A link that was made by hand. `url` is in the answer to its making, and nowhere else."""

    id: str
    access: str
    label: str
    created: int
    expires: int
    opens: str
    """`chat`, `replay`, or `file`, whose `path` it is then."""
    path: str
    url: NotRequired[str]


@_exact
class ChatLinkList(TypedDict):
    links: list[ChatLink]


@_exact
class FrameRecord(TypedDict):
    """A picture of the chat's browser: when it was taken, and of what."""

    id: str
    at: float
    width: int
    height: int
    url: str
    """Without query and fragment."""
    title: str


@_exact
class Timeline(TypedDict):
    """A part of what was done in a chat. The pictures come with the last part."""

    entries: list[Step]
    next: int
    """What to ask for entries after this one with."""
    more: bool
    frames: list[FrameRecord]


@_exact
class SignInLink(TypedDict):
    """It signs one browser in, within so many seconds."""

    url: str
    seconds: int


@_exact
class PortShared(TypedDict):
    """A public link, and when it ends, in seconds since 1970."""

    url: str
    expires: int


@_exact
class PortRecord(TypedDict):
    """A port that a program listens on, or that is shared."""

    port: int
    process: str
    address: str
    open: bool
    """False: it is shared, or was open before the sandbox was stopped; nothing listens on it now."""
    url: str
    link: str
    """The same with a token for whoever asked."""
    public: PortShared | None


@_exact
class PortOverview(TypedDict):
    ports: list[PortRecord]
    sharing: bool
    """Whether public links are allowed."""
    note: str
    """What has to be done before these addresses work elsewhere than on the service's machine; empty: nothing."""
    browser: bool
    """Whether the sandbox's own browser runs."""
    terminal: bool
    """Whether its terminal does."""
    sandbox: str
    """The state of the sandbox."""
    services: list[str]
    """What could not be started of services.json, and why."""
