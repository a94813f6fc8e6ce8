"""The one table of `make bench`: floor, others and ours, with how sure each figure is. docs/benchmarks.md explains it.

python -m bench.table [--runs 3] [--against COMMIT] [--at COMMIT] [--json FILE] [--history]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from bench import floor, history
from bench.measure import Samples, Terms, measure
from bench.result import Result, is_good, result_of, show
from bench.service import heed_signals, image
from bench.side import ROOT, NoBase, Side, exported, here

QUICK = Terms(rounds=40, starts=2, chats=2, seconds=0.2, sleepers=2, burst=4, idle=2)


def terms_of(options: argparse.Namespace) -> Terms:
    terms = QUICK if options.quick else Terms()
    oci = options.driver == "oci"
    # The memory driver runs commands on the host, which may have no node.
    made = {"driver": options.driver, "image": image() if oci else "", "command": "node -v" if oci else "true"}
    return Terms(**{**vars(terms), **made, "folder": options.folder})


def measure_floor(terms: Terms) -> Samples:
    with TemporaryDirectory(prefix="cubicle-bench-", dir=terms.folder) as folder:
        return uvloop.run(floor.measure(Path(folder), terms.image, terms.rounds, terms.starts, terms.burst))


def measure_sides(sides: Sequence[Side], terms: Terms, runs: int) -> list[list[Samples]]:
    """The runs of each side: in turns, and every second time in the other order."""
    found: list[list[Samples]] = [[] for _ in sides]
    for number in range(runs):
        ground = measure_floor(terms)
        turns = list(zip(sides, found, strict=True))
        for side, kept in reversed(turns) if number % 2 else turns:
            print(f"run {number + 1} of {runs}: {side.name}", file=sys.stderr, flush=True)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                kept.append(ground | measure(side, terms, runner.run))
    return found


def results(options: argparse.Namespace) -> list[Result]:
    """Ours, or that of the commit --at; then that of --against."""
    terms = terms_of(options)
    commits = [options.at, *([options.against] if options.against else [])]
    with ExitStack() as stack:
        sides = [stack.enter_context(exported(commit)) if commit else here() for commit in commits]
        found = measure_sides(sides, terms, options.runs)
    return [result_of(ROOT, commit, terms.driver, runs) for commit, runs in zip(commits, found, strict=True)]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="how often all is measured, each time with new services")
    parser.add_argument("--against", default="", metavar="COMMIT", help="measure this commit too, in turns")
    parser.add_argument("--at", default="", metavar="COMMIT", help="measure this commit instead of the code here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--history", action="store_true", help="add the result to bench/history.jsonl, and plot it")
    parser.add_argument("--driver", default="oci", choices=["oci", "memory"])
    parser.add_argument("--folder", default="/var/lib", help="where the state of the run lies meanwhile")
    parser.add_argument(
        "--quick", action="store_true", help="a little of everything: shows that it works, not how fast"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    try:
        ours, *before = results(options)
    except NoBase as why:
        print(f"The commit cannot be measured: {why}.", file=sys.stderr)
        return 2
    show(ours, before[0] if before else None)
    if options.json:
        options.json.write_text(ours.to_json(indent=2) + "\n")
    if options.history:
        history.add(ours)
    return 0 if is_good(ours) else 1


if __name__ == "__main__":
    heed_signals()
    sys.exit(main())
