"""What the admin page is told, all at once or each time that a part of it changes."""

from __future__ import annotations

from typing import Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from cubicle.sandbox.driver import Condition

_exact = with_config(ConfigDict(extra="forbid"))

SORTS = (
    "chat", "tenant", "state", "user", "age", "idle", "cpu", "memory", "disk", "connections", "tool", "errors",
)  # fmt: skip
"""By what the table can be sorted."""
ProblemKind = Literal["call", "egress", "quota", "load"]


@_exact
class SandboxShown(TypedDict):
    """One row of the table. Times are in seconds since 1970."""

    chat: str
    tenant: str
    state: Condition
    reason: str
    since: int | None
    """The chat's first call, if that was written down."""
    idle_since: int | None
    """null: it is used now."""
    connections: int
    user: str
    last_tool: str
    errors: int
    """Calls of the last hour that did not end well."""
    cpu_percent: int | None
    memory_bytes: int | None
    disk_bytes: int | None


@_exact
class SandboxPage(TypedDict):
    rows: list[SandboxShown]
    offset: int
    matching: int
    """Rows that fit the filter."""
    total: int


@_exact
class LastHour(TypedDict):
    calls: int
    errors: int
    outcomes: dict[str, int]
    """Calls by how they ended."""
    egress_allowed: int
    egress_denied: int
    egress_failed: int
    refused: int
    """By a quota."""
    shed: int
    """Because the host was short."""


@_exact
class QueuedStart(TypedDict):
    chat: str
    tenant: str
    user: str
    position: int
    since: int


@_exact
class IsolationState(TypedDict):
    strength: str
    holds: bool
    checked_at: int | None
    missing: list[str]
    """Layers that do not hold."""
    not_checked: int


@_exact
class HostNumbers(TypedDict):
    """What concerns the whole service, for operators. `cubicle_…` are the names in /metrics."""

    pool_ready: int
    pool_size: int
    disk_free: int
    disk_floor: int
    websockets: int
    lag_ms: int
    http_5xx: int
    """In the last hour."""
    audit: Literal["off", "written", "failing"]
    webhooks: bool
    """Whether there are receivers of webhooks."""
    webhooks_waiting: int
    webhooks_dead: int
    counters: dict[str, float]
    """Since the start of the service, as /metrics has them."""


@_exact
class ServiceNumbers(TypedDict):
    """Of the tenant, or of all."""

    sandboxes: dict[str, int]
    """By state."""
    leases: int
    calls_running: int
    last_hour: LastHour
    waiting: int
    queue: list[QueuedStart]
    """The first of those that wait."""
    in_trash: int
    trash_bytes: int
    host: NotRequired[HostNumbers]
    isolation: NotRequired[IsolationState]


@_exact
class QuotaUse(TypedDict):
    limit: str
    used: float
    most: float


@_exact
class BudgetUse(TypedDict):
    """What coding agents have spent; 0 is no limit."""

    dollars: float
    most_dollars: float
    requests: int
    most_requests: int
    tokens: int
    most_tokens: int


@_exact
class TenantShown(TypedDict):
    """One tenant. Calls, errors, denials and refusals are those of the last hour."""

    tenant: str
    sandboxes: int
    running: int
    waiting: int
    calls: int
    errors: int
    denied: int
    refused: int
    quotas: list[QuotaUse]
    budget: BudgetUse


@_exact
class TenantList(TypedDict):
    rows: list[TenantShown]
    total: int


@_exact
class ProblemShown(TypedDict):
    """Something that went wrong in a chat, `count` times between two moments."""

    tenant: str
    chat: str
    kind: ProblemKind
    detail: str
    since: int
    at: int
    count: int


@_exact
class Series(TypedDict):
    """Counts over time; the last one is of the step that is under way."""

    end: int
    """Of the last step, in seconds since 1970."""
    step: int
    """In seconds."""
    calls: list[int]
    errors: list[int]
    denied: list[int]
    refused: list[int]


@_exact
class HistoryShown(TypedDict):
    hour: Series
    day: NotRequired[Series]
    """Only of the whole service."""


@_exact
class Overview(TypedDict):
    """The admin page. An event of the stream has `now`, and those of the others that changed."""

    now: float
    service: ServiceNumbers
    tenants: TenantList
    problems: list[ProblemShown]
    history: HistoryShown
    sandboxes: SandboxPage
