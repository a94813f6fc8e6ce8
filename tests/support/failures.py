"""What failed, kept for the end of `make test`: its parts print hundreds of lines after the one that failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PLACE = "CUBICLE_FAILURES"
_LINES = 30
"""Of one failure; the end of it says what was wrong."""
_key = pytest.StashKey[Path]()


def begin(config: pytest.Config) -> None:
    """Find out where to. No pytest that a test starts shall write there too."""
    if place := os.environ.pop(PLACE, ""):
        config.stash[_key] = Path(place)


def note(terminal: pytest.TerminalReporter, config: pytest.Config, left: list[str]) -> None:
    """Append every failure and what was left behind."""
    if _key not in config.stash:
        return
    reports = [*terminal.stats.get("failed", []), *terminal.stats.get("error", [])]
    with config.stash[_key].open("a") as file:
        for report in reports:
            lines = report.longreprtext.splitlines()[-_LINES:]
            file.write("\n".join([f"FAILED {report.nodeid} ({report.when})", *(f"    {line}" for line in lines), ""]))
        file.writelines(f"LEFT BEHIND {line}\n" for line in left)
