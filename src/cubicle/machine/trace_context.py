"""The trace that the running task belongs to, for the commands that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

_NONE: Mapping[str, str] = {}
trace_variables: ContextVar[Mapping[str, str]] = ContextVar("cubicle_trace", default=_NONE)
"""Variables of every command: TRACEPARENT, as W3C writes it. None while nothing is traced."""
