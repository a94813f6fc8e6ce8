"""The settings for running the service for long and for many: journal, audit log, resumed calls, metrics,
traces, quotas and webhooks.

cubicle.settings reads them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings


class AuditMode(StrEnum):
    """Whether there is an audit log, and what happens while it cannot be written."""

    REQUIRED = "required"
    ON = "on"
    OFF = "off"


class OperationSettings(BaseSettings):
    """One field per setting, as in cubicle.settings."""

    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that serve, each with its own part of the chats (docs/replicas.md). More than one: for "
        "hosts with many cores.",
    )
    worker_hang_seconds: float = Field(
        30,
        ge=0,
        le=3600,
        description="With several WORKERS: one whose event loop stands still for so long is killed, and the others "
        "take over its chats; 0: never.",
    )
    replicas: int = Field(
        1, ge=1, le=64, description="Kubernetes: replicas of the service that share DATA_DIR (docs/replicas.md)."
    )
    member_slot: int = Field(
        0,
        ge=0,
        le=64,
        description="Kubernetes: number of this replica, from 1; 0: from the number at the end of its host name, as a "
        "StatefulSet has it.",
    )
    member_host: str = Field(
        "", description="Kubernetes: address at which other replicas reach this one; empty: that of its host name."
    )
    member_port: int = Field(
        8082, ge=0, le=65535, description="Kubernetes: port at which other replicas reach this one."
    )
    member_secret_file: Path | None = Field(
        None,
        description="Kubernetes: file with the secret by which replicas know each other, the same for all; of several "
        "lines the first one signs. At least 16 characters.",
    )
    resume_seconds: float = Field(
        60, ge=0, le=3600, description="Seconds that a call goes on after its client, which can resume, was cut off."
    )
    drain_seconds: float = Field(
        20,
        ge=0,
        le=3600,
        description="Seconds that running calls and uploads have to finish after SIGTERM, while new ones get 503. "
        "Commands that run longer go on in their sandboxes.",
    )
    task_hours: float = Field(24, gt=0, le=8760, description="Hours that an MCP task and its result are kept, at most.")
    journal_mb: float = Field(
        2, ge=0, le=1024, description="MiB that the journal of one chat may take (docs/journal.md); 0: none is kept."
    )
    journal_days: float = Field(30, gt=0, description="Days after which entries of a journal are dropped.")
    replay_mb: float = Field(
        16,
        ge=0,
        le=1024,
        description="MiB that the pictures of one chat's browser may take, which its replay shows (docs/replay.md); 0: "
        "none are taken.",
    )
    replay_total_mb: float = Field(2048, ge=0, description="MiB that those of all chats together may take.")

    audit: AuditMode = Field(
        AuditMode.REQUIRED,
        description="The audit log (docs/audit.md). required: while it cannot be written, nothing new begins; on: the "
        "service goes on, and the log says what is missing; off: there is none.",
    )
    audit_days: float = Field(365, gt=0, description="Days after which records of the audit log are dropped.")
    audit_mb: int = Field(
        0,
        ge=0,
        description="MiB that the audit log may take; of more, the oldest records are dropped; 0: any, only their age "
        "counts.",
    )

    metrics_token: str = Field(
        "",
        description="Bearer secret with which Prometheus reads /metrics, at least 8 characters without blanks; empty: "
        "the operator's key.",
    )
    metrics_tenants: bool = Field(
        False,
        description="Count tool calls by tenant in /metrics, for 200 tenants at most. Whoever reads the metrics then "
        "sees the names of tenants.",
    )
    otel_exporter_otlp_endpoint: str = Field(
        "",
        description="URL of an OpenTelemetry collector (OTLP over HTTP) that gets a trace of each MCP request; needs "
        "the extra `traces`. Empty: no traces.",
    )

    max_sandboxes: int = Field(
        0,
        ge=0,
        description="Sandboxes that may run at once in the whole service; further starts wait in a queue; 0: any.",
    )
    start_queue_seconds: float = Field(
        30, ge=0, le=3600, description="Seconds that a start over a limit waits in the queue before it is refused."
    )
    tenant_max_sandboxes: int = Field(
        0, ge=0, description="Sandboxes of one tenant that may run at once; further starts wait in a queue; 0: any."
    )
    tenant_max_calls: int = Field(
        0, ge=0, description="Tool calls and uploads of one tenant that may be under way at once; 0: any."
    )
    tenant_calls_per_minute: int = Field(
        0, ge=0, le=1_000_000, description="Tool calls and uploads of one tenant in a minute; 0: any."
    )
    tenant_cpu_seconds_per_day: int = Field(
        0, ge=0, description="CPU seconds of the sandboxes of one tenant in 24 hours; 0: any."
    )
    tenant_egress_mb_per_day: int = Field(
        0, ge=0, description="MiB that the sandboxes of one tenant may send and receive in 24 hours; 0: any."
    )
    tenant_disk_mb: int = Field(0, ge=0, description="MiB that the sandboxes of one tenant may hold; 0: any.")
    user_max_sandboxes: int = Field(
        0,
        ge=0,
        description="Sandboxes of one user (X-User-Email) that may run at once; others wait in a queue; 0: any.",
    )
    user_max_calls: int = Field(
        0,
        ge=0,
        description="Tool calls and uploads of one user (X-User-Email) that may be under way at once; 0: any.",
    )
    user_calls_per_minute: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Tool calls and uploads of one user (X-User-Email) in a minute; 0: any.",
    )
    user_cpu_seconds_per_day: int = Field(
        0, ge=0, description="CPU seconds of the sandboxes of one user (X-User-Email) in 24 hours; 0: any."
    )
    user_egress_mb_per_day: int = Field(
        0,
        ge=0,
        description="MiB that the sandboxes of one user (X-User-Email) may send and receive in 24 hours; 0: any.",
    )
    user_disk_mb: int = Field(
        0, ge=0, description="MiB that the sandboxes of one user (X-User-Email) may hold; 0: any."
    )
    sub_agent_user_budget_usd: float = Field(
        0,
        ge=0,
        description="Dollars that the agents of all chats of one user (X-User-Email) may spend on models in "
        "SUB_AGENT_TENANT_DAYS; 0: no limit.",
    )
    shed_memory_mb: int = Field(
        128,
        ge=0,
        description="Available memory of the host, MiB, below which new work of a busy tenant is refused with 503; "
        "0: never.",
    )
    shed_lag_ms: int = Field(
        1000,
        ge=0,
        description="Milliseconds that the event loop is usually late above which new work of a busy tenant is refused "
        "with 503; 0: never.",
    )

    webhooks_file: Path | None = Field(
        None,
        description="TOML file of who is told of events by webhook (docs/webhooks.md); read again when it changes. "
        "Empty: nobody is.",
    )

    @field_validator("webhooks_file", "member_secret_file", mode="before")
    @classmethod
    def _no_file(cls, value: Any) -> Any:
        return value or None

    @field_validator("metrics_token")
    @classmethod
    def _token(cls, value: str) -> str:
        if value and (len(value) < 8 or not value.isascii() or not value.isprintable() or " " in value):
            raise ValueError("must be at least 8 printable ASCII characters without blanks")
        return value

    @field_validator("otel_exporter_otlp_endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("must be an address that starts with http:// or https://")
        return value.rstrip("/")
