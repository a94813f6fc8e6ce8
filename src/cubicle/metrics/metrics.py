"""Every metric of the service: its name, labels and meaning. docs/metrics.md is made of the same words.

No label holds a chat, a user or anything that a client chose. A tenant is one only with METRICS_TENANTS, and the number
of those is bounded.
"""

from __future__ import annotations

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from cubicle import __version__
from cubicle.metrics.recent import Recent

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
"""The label of what is not among the known names."""
WELL = ("done", "cancelled")
"""The ends of calls that are no errors."""
_MAX_TENANTS = 200
_STATUSES = {number: f"{number}xx" for number in range(1, 6)}
_CALLS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120, 600)
_REQUESTS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_ROUND_TRIPS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
_LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_WAITS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The numbers of one service. Counting never waits and never fails."""

    def __init__(self, *, tenants: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.recent = Recent()
        """The same counts by time and tenant, for the admin page."""
        self._tenants: set[str] | None = set() if tenants else None
        of_tenant = ("tenant",) if tenants else ()
        registry = self.registry
        ProcessCollector(registry=registry)
        Info("cubicle_build", "The version that serves.", registry=registry).info({"version": __version__})
        self._calls = Counter(
            "cubicle_tool_calls", "Tool calls that ended, by how.", ("tool", "outcome", *of_tenant), registry=registry
        )
        self._call_seconds = Histogram(
            "cubicle_tool_call_seconds", "How long tool calls took.", ("tool",), buckets=_CALLS, registry=registry
        )
        self._running = Gauge("cubicle_tool_calls_running", "Tool calls under way.", ("tool",), registry=registry)
        self._requests = Counter(
            "cubicle_http_requests", "HTTP requests by group of routes and status.", ("route", "status"),
            registry=registry,
        )  # fmt: skip
        self._request_seconds = Histogram(
            "cubicle_http_request_seconds", "How long HTTP requests took, streams included.", ("route",),
            buckets=_REQUESTS, registry=registry,
        )  # fmt: skip
        self.websockets = Gauge("cubicle_websockets", "WebSockets that are open.", ("route",), registry=registry)
        self._count_sandboxes(registry)
        self._count_limits(registry)
        # Which of them a set of labels means takes the library longer than counting: it is asked once.
        self._running_of = cache(self._running.labels)
        self._seconds_of = cache(self._call_seconds.labels)
        self._calls_of = cache(self._calls.labels)
        self._requests_of = cache(self._requests.labels)
        self._request_seconds_of = cache(self._request_seconds.labels)

    def _count_sandboxes(self, registry: CollectorRegistry) -> None:
        self.sandboxes = Gauge("cubicle_sandboxes", "Sandboxes of chats, by state.", ("state",), registry=registry)
        self.starts = Counter(
            "cubicle_sandbox_starts", "Sandboxes made for a chat, and those of stopped chats that were started again.",
            ("what",), registry=registry,
        )  # fmt: skip
        self.frozen = Gauge("cubicle_sandboxes_frozen", "Of those that run: the frozen ones.", registry=registry)
        self.leases = Gauge("cubicle_sandbox_leases", "Uses of sandboxes under way.", registry=registry)
        self.pool_ready = Gauge("cubicle_pool_ready", "Blank sandboxes that are up.", registry=registry)
        self.pool_size = Gauge("cubicle_pool_size", "Blank sandboxes that are wanted now.", registry=registry)
        self.round_trip = Histogram(
            "cubicle_guest_round_trip_seconds", "From a question to a guest to its answer, the work included.",
            buckets=_ROUND_TRIPS, registry=registry,
        )  # fmt: skip
        self.egress_decisions = Counter(
            "cubicle_egress_decisions", "Connections out of sandboxes, by the egress proxy's decision.", ("decision",),
            registry=registry,
        )  # fmt: skip
        self.egress_bytes = Counter(
            "cubicle_egress_bytes", "Bytes between sandboxes and the outside.", ("direction",), registry=registry
        )

    def _count_limits(self, registry: CollectorRegistry) -> None:
        self.loop_waiting = Gauge(
            "cubicle_loop_queue_waiting", "Steps of requests that wait for a turn of the event loop.", registry=registry
        )
        self.loop_lag = Histogram(
            "cubicle_loop_lag_seconds", "How late the event loop was at a timer.", buckets=_LAGS, registry=registry
        )
        self.starts_waiting = Gauge(
            "cubicle_start_queue_waiting", "Starts of sandboxes that wait in the queue.", registry=registry
        )
        self.start_wait = Histogram(
            "cubicle_start_queue_seconds", "How long starts waited in the queue.", buckets=_WAITS, registry=registry
        )
        self.refusals = Counter(
            "cubicle_quota_refusals", "Calls and requests refused by a quota.", ("limit", "scope"), registry=registry
        )
        self.shed = Counter(
            "cubicle_load_shed", "Calls and requests refused because the host is short.", ("reason",), registry=registry
        )
        self.disk_free = Gauge("cubicle_disk_free_bytes", "Free space of the disk of DATA_DIR.", registry=registry)
        self.disk_floor = Gauge(
            "cubicle_disk_floor_bytes", "Free space below which nothing is started (MIN_FREE_MB).", registry=registry
        )
        self.audit_failing = Gauge(
            "cubicle_audit_failing", "1 while the audit log cannot be written, else 0.", registry=registry
        )
        self.webhooks = Gauge(
            "cubicle_webhooks", "Messages to receivers of webhooks that wait, or were given up (dead).", ("state",),
            registry=registry,
        )  # fmt: skip

    def call_began(self, tool: str) -> None:
        self._running_of(tool).inc()

    def call_ended(self, tool: str, outcome: str, seconds: float, tenant: str, chat: str = "") -> None:
        self.recent.add(outcome, tenant=tenant)
        if outcome not in WELL:
            self.recent.note(tenant, chat, "call", f"{tool}: {outcome}")
        self._running_of(tool).dec()
        self._seconds_of(tool).observe(seconds)
        if self._tenants is None:
            self._calls_of(tool, outcome).inc()
        else:
            self._calls_of(tool, outcome, self._known(self._tenants, tenant)).inc()

    def request_ended(self, route: str, status: int, seconds: float) -> None:
        if status >= 500:
            self.recent.add("http_5xx")
        self._requests_of(route, _STATUSES.get(status // 100, "none")).inc()
        self._request_seconds_of(route).observe(seconds)

    def quota_refused(self, limit: str, scope: str, tenant: str, chat: str) -> None:
        self.refusals.labels(limit, scope).inc()
        self.recent.add("refused", tenant=tenant)
        self.recent.note(tenant, chat, "quota", f"{limit} of the {scope}")

    def load_shed(self, reason: str, tenant: str, chat: str) -> None:
        self.shed.labels(reason).inc()
        self.recent.add("shed", tenant=tenant)
        self.recent.note(tenant, chat, "load", reason)

    def egress_decided(self, decision: str, count: int, tenant: str, chat: str) -> None:
        self.egress_decisions.labels(decision).inc(count)
        self.recent.add(f"egress_{decision}", count, tenant)
        if decision == "denied":
            self.recent.note(tenant, chat, "egress", "denied", count)

    def values(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Every number of /metrics, by its name and the values of its labels, in the order of the labels' names."""
        return {
            (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in self.registry.collect()
            for sample in family.samples
        }

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)

    @staticmethod
    def _known(known: set[str], tenant: str) -> str:
        if tenant not in known:
            if len(known) >= _MAX_TENANTS:
                return OTHER
            known.add(tenant)
        return tenant
