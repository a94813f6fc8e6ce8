"""How a call ended, in one word: for metrics and the audit log."""

from __future__ import annotations

import asyncio

from cubicle.machine.errors import Gone, SandboxError
from cubicle.tools.arguments import BadArgument
from cubicle.tools.base import Answer, NotBegun

OUTCOMES = (
    "done", "failed", "timed_out", "out_of_memory", "killed", "bad_argument", "refused", "sandbox_gone",
    "sandbox_failed", "cancelled", "crashed",
)  # fmt: skip


def outcome_of(answer: Answer) -> str:
    exit = answer.exit
    if exit is not None and exit.timed_out:
        return "timed_out"
    if exit is not None and exit.out_of_memory:
        return "out_of_memory"
    if exit is not None and exit.code is None:
        return "killed"
    return "failed" if answer.error else "done"


def outcome_of_error(error: BaseException) -> str:
    """Of a call that ended without an answer."""
    match error:
        case BadArgument():
            return "bad_argument"
        case NotBegun():
            return "refused"
        case SandboxError():
            return "sandbox_gone" if isinstance(error, Gone) else "sandbox_failed"
        case asyncio.CancelledError():
            return "cancelled"
    return "crashed"
