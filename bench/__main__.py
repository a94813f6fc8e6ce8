"""All benchmarks, one after the other: python -m bench [name …], of core, http, burst, files, egress, live, journal,
audit."""

from __future__ import annotations

import subprocess
import sys

ALL = ("core", "http", "burst", "files", "egress", "live", "journal", "audit")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"There is no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}.", file=sys.stderr)
        return 2
    # Each in a process of its own: what one leaves in memory would be counted to the next.
    missed = [name for name in names or ALL if subprocess.call([sys.executable, "-m", f"bench.{name}"])]
    if missed:
        print(f"Bars missed in: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
