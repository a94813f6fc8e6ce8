"""How figures are summed up, shown, kept and drawn."""

from __future__ import annotations

import io
import json
import os
import time
import xml.etree.ElementTree as ET
from dataclasses import fields, replace
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console

from bench import history
from bench.figures import BY_KEY, FIGURES
from bench.intervals import median_interval
from bench.plot import plot
from bench.result import Result, Value, is_good, meets_bar, result_of, show, values_of
from bench.service import cpu_clock
from bench.side import ROOT

DOCS = (ROOT / "docs" / "benchmarks.md").read_text()


def result(commit: str = "abc", committed: str = "2026-11-01T00:00:00+00:00", **runs: list[float]) -> Result:
    figures = values_of([runs or {"floor_spawn": [1.0, 1.0], "warm_call": [2.0, 2.5, 3.0]}])
    return Result(commit, "a <subject>", committed, False, "2026-11-02", {"cpus": 2}, "oci", 1, figures)


def test_the_interval_holds_the_median_and_is_the_same_every_time() -> None:
    samples = [float(number % 17) for number in range(200)]
    low, high = median_interval([samples])
    assert low <= median(samples) <= high
    assert (low, high) == median_interval([samples])


def test_runs_that_differ_make_the_interval_wide_however_many_samples_each_has() -> None:
    assert median_interval([[1.0] * 300, [2.0] * 300, [3.0] * 300]) == (1.0, 3.0)
    assert median_interval([[2.0] * 300]) == (2.0, 2.0)


def test_a_bar_counts_for_the_median_and_for_the_percentile_it_names() -> None:
    value = Value("ms", 3, p50=55, low=50, high=60, p95=79, p99=90)
    cold = BY_KEY["new_cold"]
    assert meets_bar(cold, value) is True
    assert meets_bar(cold, replace(value, p95=81)) is False
    assert meets_bar(cold, replace(value, p50=61)) is False
    assert meets_bar(BY_KEY["parallel"], replace(value, p50=599)) is False, "more is better"
    assert meets_bar(BY_KEY["burst_neighbour"], replace(value, p50=5)) is False, "its p99"
    assert meets_bar(BY_KEY["floor_run"], value) is None
    assert is_good(result()) is True
    assert is_good(result(warm_call=[9.0])) is False


def test_the_table_has_ours_beside_floor_peer_field_and_the_commit_before() -> None:
    text = io.StringIO()
    ours = result(floor_spawn=[1.0], warm_call=[2.0], floor_node=[20.0], node_one=[25.6], parallel=[284.0])
    show(ours, result("old", warm_call=[6.0]), Console(width=220, file=text))
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in text.getvalue().splitlines()}
    warm, node, parallel = (rows[BY_KEY[key].name] for key in ("warm_call", "node_one", "parallel"))
    assert warm.endswith(" ms 1 2.00 2.00 – 2.00 2.00 2.00 1.00 2.0 × 119 60 × 6.00 3.0 × met ≤ 3.50")
    assert node.endswith(" 25.6 20.0 1.3 × 12.8 0.5 ×")
    assert parallel.endswith(" 284 14.2 20 × MISSED ≥ 600"), "more calls a second are better"
    assert "isorun" in text.getvalue()


def test_a_result_is_read_as_it_was_written() -> None:
    assert Result.of_line(result().to_json()) == result()
    found = result_of(ROOT, "HEAD", "memory", [{"warm_call": [1.0, 2.0]}, {"warm_call": [3.0]}])
    assert (found.runs, found.figures["warm_call"].n, found.figures["warm_call"].p50) == (2, 3, 2.0)
    assert found.committed
    assert found.machine["cpus"] >= 1


def test_the_page_describes_every_field_and_every_figure() -> None:
    names = {field.name for record in (Result, Value) for field in fields(record)} | set(result_of_machine())
    assert [name for name in sorted(names) if f"`{name}`" not in DOCS] == []
    assert [figure.key for figure in FIGURES if f"`{figure.key}`" not in DOCS] == []


def result_of_machine() -> list[str]:
    return list(result_of(ROOT, "", "memory", []).machine)


def test_every_floor_is_a_figure() -> None:
    assert {figure.floor for figure in FIGURES if figure.floor} <= BY_KEY.keys()
    assert len(BY_KEY) == len(FIGURES)


def test_the_history_is_in_the_order_of_commits_and_the_last_result_of_one_counts(tmp_path: Path) -> None:
    lines, picture = tmp_path / "lines", tmp_path / "picture.svg"
    history.add(result("new", "2026-11-03T00:00:00+00:00"), lines, picture)
    history.add(result("old", "2026-11-01T00:00:00+00:00", warm_call=[9.0]), lines, picture)
    history.add(result("old", "2026-11-01T00:00:00+00:00", warm_call=[4.0]), lines, picture)
    assert [(found.commit, found.figures["warm_call"].p50) for found in history.read(lines)] == [
        ("old", 4.0),
        ("new", 2.5),
    ]
    assert len(lines.read_text().splitlines()) == 3, "a line is never changed"
    assert picture.read_text() == plot(history.read(lines))


@pytest.mark.parametrize("unknown", [{"dirty": True}, {"committed": ""}])
def test_what_is_not_committed_does_not_go_into_the_history(tmp_path: Path, unknown: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="committed"):
        history.add(replace(result(), **unknown), tmp_path / "lines", tmp_path / "picture")  # type: ignore[arg-type]
    assert not (tmp_path / "lines").exists()


def test_the_plot_has_a_panel_for_each_figure_and_a_point_for_each_commit() -> None:
    drawn = plot([result("one"), result("two"), result("three", warm_call=[1.0])])
    svg = ET.fromstring(drawn)
    name = "{http://www.w3.org/2000/svg}"
    panels = svg.findall(f"{name}g")
    assert [len(panel.findall(f"{name}circle")) for panel in panels] == [3], "the floor is no panel"
    lines = {line.get("class"): (line.get("points") or "").split() for line in svg.iter(f"{name}polyline")}
    assert {style: len(points) for style, points in lines.items()} == {"floor": 2, "line": 3}
    titles = [circle.findtext(f"{name}title") or "" for circle in svg.iter(f"{name}circle")]
    assert titles[0].startswith("one a <subject>: 2.5 ms (")


def test_the_plot_in_the_docs_is_that_of_the_kept_results() -> None:
    assert history.PICTURE.read_text() == plot(history.read()), "run: python -m bench.history"
    assert history.read(), "and there are some"
    assert "(bench-history.svg)" in DOCS
    for line in history.LINES.read_text().splitlines():
        assert json.loads(line)["schema"] == 1


def test_the_clock_of_another_process_counts_its_processor_time() -> None:
    before, own = cpu_clock(os.getpid()), time.process_time()
    while time.process_time() - own < 0.05:
        pass
    assert 0.05 <= cpu_clock(os.getpid()) - before < 5
