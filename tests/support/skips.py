"""Which tests may be skipped where every test is promised (`make test`, CI): those for want of a feature of the kernel.

Everything else that a test needs is set up by `make test`, so its absence is a failure. Tests that only some runs have
(marks `long` and `bare`) are deselected in the others, not skipped.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

import pytest

KERNEL_FEATURES = {
    r"there is one processor only": "nothing to share out with one processor",
    r"this kernel has no (btrfs|xfs) with quotas": "a file system with quotas that a test mounts",
    r"disks are limited by quota here": "project quotas stand in for disk images where DATA_DIR's file system has them",
    r"this kind of machine has no package of Helm": "Helm comes in a package for x86_64 alone",
    r"the engine's storage limits disks itself": "the same for Docker's storage",
}
"""The beginning of each reason that is allowed, and what it is about."""

ASKED_FOR = {
    "long": (("CUBICLE_LONG",), "long version: CUBICLE_LONG=1 runs it"),
    "bare": (("CI", "CUBICLE_LONG"), "set-up from nothing: CI runs it, and CUBICLE_LONG=1"),
}
"""Marks of tests that run only where one of these variables is set, and what the summary says of the others."""


def left_out(item: pytest.Item) -> str:
    """The mark for which this run does without the test; empty if it does not."""
    for mark, (variables, _) in ASKED_FOR.items():
        if item.get_closest_marker(mark) and not any(os.environ.get(name) for name in variables):
            return mark
    return ""


def all_promised() -> bool:
    """Whether nothing may be missing in this run."""
    return bool(os.environ.get("CUBICLE_REQUIRE_ALL") or os.environ.get("CI"))


def allowed(reason: str) -> bool:
    """Whether a test may be skipped for this reason where every test is promised."""
    return any(re.match(pattern, reason) for pattern in KERNEL_FEATURES)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why it was skipped, as the test said it."""
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return said.removeprefix("Skipped: ")


def judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of a skip that is not allowed. What is expected to fail (xfail) is no skip."""
    if report.skipped and not hasattr(report, "wasxfail") and all_promised() and not allowed(reason_of(report)):
        report.outcome = "failed"
        report.longrepr = (
            f"Skipped: {reason_of(report)} (tests/support/skips.py does not allow this where all is promised)"
        )


def summary(reports: Iterable[pytest.TestReport], left_out: dict[str, int]) -> list[str]:
    """What was left out of this run, with counts; `left_out` by mark."""
    counts = Counter(reason_of(report) for report in reports)
    lines = [f"SKIPPED {count} × {reason}" for reason, count in sorted(counts.items())]
    lines += [f"LEFT OUT {count} × {ASKED_FOR[mark][1]}" for mark, count in left_out.items()]
    return lines
