"""Which files have tests of a part of the suite.

Reading all files takes each worker eight seconds of a processor. The workers of the first part do; the later parts read
only the files that they run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PARTS = ("oci", "docker", "real", "serial")
_OF_A_CLUSTER = [_ROOT / "tests" / name for name in ("drivers", "members", "worker")]
"""Where `scripts/run-tests kubernetes` looks."""


def note(items: list[pytest.Item]) -> None:
    """Write a line for each mark and file, if CUBICLE_MARKED_FILES says where. All workers find the same: one writes."""
    marked = {(mark.name, item.path) for item in items for mark in item.iter_markers()}
    place = os.environ.get("CUBICLE_MARKED_FILES")
    if place and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        lines = [f"{name} {path.relative_to(_ROOT)}\n" for name, path in sorted(marked) if name in _PARTS]
        Path(place).write_text("".join(lines))
    for name, path in marked:
        if name == "kubernetes" and not any(path.is_relative_to(folder) for folder in _OF_A_CLUSTER):
            raise pytest.UsageError(f"scripts/run-tests does not look for tests of a cluster at {path}")
