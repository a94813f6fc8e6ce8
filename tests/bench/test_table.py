"""`make bench`: a little of everything on the memory driver, printed and written."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.__main__ import main as run_all
from bench.figures import FIGURES
from bench.result import Result
from bench.table import main


@pytest.mark.long  # the gate of speed makes the main measurements
@pytest.mark.timeout(600)
def test_every_figure_is_measured_printed_and_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    arguments = ["--driver", "memory", "--quick", "--runs", "1", "--folder", str(tmp_path), "--json", str(file)]
    assert main(arguments) in (0, 1), "a bar may be missed: the machine is busy, and no sandbox is measured"
    result = Result.of_line(file.read_text())
    printed = capfd.readouterr().out
    measured = {figure.key for figure in FIGURES if figure.key == "floor_spawn" or not figure.key.startswith("floor_")}
    assert result.figures.keys() == measured, "of plain containers nothing: this driver has none"
    assert all(value.low <= value.p50 <= value.high for value in result.figures.values())
    assert result.figures["burst_failed"].p95 == 0
    assert result.figures["warm_call"].n == 40
    assert [figure.name for figure in FIGURES if figure.key in measured and figure.name not in printed] == []
    assert list(tmp_path.iterdir()) == [file], "and nothing else is left"


def test_a_commit_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--driver", "memory", "--at", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_an_unknown_benchmark_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_all(["nothing"]) == 2
    assert "There is no benchmark nothing; there are table, core" in capsys.readouterr().err
