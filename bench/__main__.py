"""The table of all figures: python -m bench [option …]. Benchmarks of single parts: python -m bench name …, or all."""

from __future__ import annotations

import subprocess
import sys

from bench import table
from bench.service import heed_signals

ALL = ("table", "core", "http", "burst", "idle", "files", "egress", "live", "journal", "audit")


def main(names: list[str]) -> int:
    if not names or names[0].startswith("-"):
        return table.main(names)
    names = list(ALL) if names == ["all"] else names
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"There is no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}.", file=sys.stderr)
        return 2
    # Each in a process of its own: what one leaves in memory would be counted to the next.
    missed = [name for name in names if subprocess.call([sys.executable, "-m", f"bench.{name}"])]
    if missed:
        print(f"Bars missed in: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    heed_signals()
    sys.exit(main(sys.argv[1:]))
