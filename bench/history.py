"""The figures of the commits that were measured, and their plot: bench/history.jsonl and docs/bench-history.svg.

python -m bench.history            draw the plot again
python -m bench.history FILE       add a result that `python -m bench.table --json FILE` wrote, then draw
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.plot import plot
from bench.result import Result
from bench.side import ROOT

LINES = ROOT / "bench" / "history.jsonl"
PICTURE = ROOT / "docs" / "bench-history.svg"


def read(path: Path = LINES) -> list[Result]:
    """In the order of their commits; of one that was measured twice, the last result."""
    if not path.exists():
        return []
    found = {result.commit: result for result in map(Result.of_line, path.read_text().splitlines())}
    return sorted(found.values(), key=lambda result: result.committed)


def add(result: Result, lines: Path = LINES, picture: Path = PICTURE) -> None:
    """Raises ValueError where it is not known which code was measured."""
    if result.dirty or not result.committed:
        raise ValueError("only what is committed goes into the history")
    with lines.open("a") as file:
        file.write(result.to_json() + "\n")
    picture.write_text(plot(read(lines)))


def main(argv: list[str]) -> None:
    if argv:
        add(Result.of_line(Path(argv[0]).read_text()))
    else:
        PICTURE.write_text(plot(read()))


if __name__ == "__main__":
    main(sys.argv[1:])
