"""What one `make bench` found, as it is printed and kept. docs/benchmarks.md has the fields of the JSON."""

from __future__ import annotations

import json
import os
import platform
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from bench.figures import BY_KEY, FIELD, FIGURES, PEER, Figure
from bench.intervals import median_interval
from bench.report import percentile
from bench.side import NoBase, git

SCHEMA = 1


@dataclass(frozen=True)
class Value:
    """One figure: the median of all samples, the interval it lies in, and what else is worth a look."""

    unit: str
    n: int
    p50: float
    low: float
    high: float
    """The 95 % interval of the median."""
    p95: float
    p99: float

    @classmethod
    def of(cls, unit: str, runs: Sequence[Sequence[float]]) -> Self:
        samples = [sample for run in runs for sample in run]
        numbers = (median(samples), *median_interval(runs), percentile(samples, 0.95), percentile(samples, 0.99))
        return cls(unit, len(samples), *(round(number, 3) for number in numbers))


def values_of(runs: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Value]:
    """The figures of which there are samples."""
    found = {}
    for figure in FIGURES:
        samples = [run[figure.key] for run in runs if run.get(figure.key)]
        if samples:
            found[figure.key] = Value.of(figure.unit, samples)
    return found


@dataclass(frozen=True)
class Result:
    """A run of the table: one line of bench/history.jsonl."""

    commit: str
    subject: str
    committed: str
    dirty: bool
    """Whether the code had changes that were not committed."""
    date: str
    machine: dict[str, Any]
    driver: str
    runs: int
    figures: dict[str, Value] = field(default_factory=dict)
    schema: int = SCHEMA

    @classmethod
    def of_line(cls, line: str) -> Self:
        fields = json.loads(line)
        figures = {key: Value(**value) for key, value in fields.pop("figures").items()}
        return cls(**fields, figures=figures)

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(asdict(self), indent=indent, ensure_ascii=False)


def result_of(root: Path, commit: str, driver: str, runs: Sequence[Mapping[str, Sequence[float]]]) -> Result:
    """Of this commit; of the code in the folder where it is empty."""
    try:
        name, subject, when = git(root, "log", "-1", "--format=%h%n%s%n%cI", commit or "HEAD").split("\n")
        dirty = not commit and bool(git(root, "status", "--porcelain", "--", "src"))
    except NoBase:
        name, subject, when, dirty = "unknown", "", "", False
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Result(name, subject, when, dirty, date, machine(), driver, len(runs), values_of(runs))


def machine() -> dict[str, Any]:
    memory = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "memory_gb": round(int(memory) / 1024**2, 1),
        "python": platform.python_version(),
        "python_optimized": "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
        "load": round(os.getloadavg()[0], 2),
    }


def _shown(number: float | None, digits: int = 3) -> str:
    """With so many digits that count."""
    if number is None:
        return ""
    if number == 0:
        return "0"
    whole = len(str(int(abs(number))))
    return f"{number:,.{max(0, digits - whole)}f}"


def _times(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:.2g} ×" if number < 1 else f"{_shown(number, 2)} ×"


def table(result: Result, before: Result | None = None) -> Table:
    """One row a figure. `before` is another commit, measured in the same runs."""
    made = Table(box=None, header_style="bold", pad_edge=False, title_justify="left")
    made.title = f"{result.commit}{' and changes' if result.dirty else ''}, {result.runs} runs, driver {result.driver}"
    made.add_column("measured (p50)")
    names = [
        "unit",
        "n",
        "ours",
        "95 % interval",
        "p95",
        "p99",
        "floor",
        "of floor",
        "peer",
        "× better",
        "field",
        "× better",
    ]
    if before is not None:
        names += [before.commit, "× better"]
    for name in names:
        made.add_column(name, justify="right")
    made.add_column("bar")
    for key, value in result.figures.items():
        made.add_row(*_row(BY_KEY[key], value, result, before))
    return made


def _row(figure: Figure, value: Value, result: Result, before: Result | None) -> list[str]:
    floor = result.figures.get(figure.floor)
    cells = [figure.name, value.unit, str(value.n), _shown(value.p50)]
    cells += [f"{_shown(value.low)} – {_shown(value.high)}", _shown(value.p95), _shown(value.p99)]
    cells += [_shown(floor.p50), _times(value.p50 / floor.p50)] if floor and floor.p50 else ["", ""]
    for theirs in (figure.peer, figure.field):
        cells += [_shown(theirs), _times(figure.times_better(value.p50, theirs))]
    if before is not None:
        old = before.figures.get(figure.key)
        cells += [_shown(old.p50), _times(figure.times_better(value.p50, old.p50))] if old else ["", ""]
    return [*cells, _verdict(figure, value)]


def _verdict(figure: Figure, value: Value) -> str:
    met = meets_bar(figure, value)
    if met is None:
        return ""
    bar = f"{'≥' if figure.more else '≤'} {_shown(figure.bar)}"
    bar += f", p95 ≤ {_shown(figure.bar_p95)}" if figure.bar_p95 is not None else ""
    bar += f", p99 ≤ {_shown(figure.bar_p99)}" if figure.bar_p99 is not None else ""
    return f"[green]met[/] {bar}" if met else f"[red]MISSED[/] {bar}"


def meets_bar(figure: Figure, value: Value) -> bool | None:
    """None where it has no bar."""
    if figure.bar is None:
        return None
    good = value.p50 >= figure.bar if figure.more else value.p50 <= figure.bar
    good = good and (figure.bar_p95 is None or value.p95 <= figure.bar_p95)
    return good and (figure.bar_p99 is None or value.p99 <= figure.bar_p99)


def is_good(result: Result) -> bool:
    """Whether every bar is met."""
    return all(meets_bar(BY_KEY[key], value) is not False for key, value in result.figures.items())


def show(result: Result, before: Result | None = None, console: Console | None = None) -> None:
    console = console or Console(width=210)
    console.print(table(result, before))
    console.print(
        f"peer: {PEER}\nfield, create → node -v, p50 ms, one at a time / 100 at once: {FIELD}", highlight=False
    )
