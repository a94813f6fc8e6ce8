"""A table of measurements, each with the bar it must meet."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def percentile(samples: Sequence[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Report:
    """Rows as they come; `good` says whether every bar was met."""

    def __init__(self, title: str) -> None:
        self._table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
        for name in ("measured", "n", "p50 ms", "p95 ms", "max ms"):
            self._table.add_column(name, justify="left" if name == "measured" else "right")
        self._table.add_column("")
        self._table.add_column("")
        self.good = True

    def row(self, name: str, samples: Sequence[float], bar: bool | None = None, note: str = "") -> None:
        figures = [f"{percentile(samples, share):.2f}" for share in (0.5, 0.95)]
        self._add(name, str(len(samples)), *figures, f"{max(samples):.2f}", note, bar)  # type: ignore[arg-type, call-arg]

    def note(self, name: str, text: str, bar: bool | None = None) -> None:
        self._add(name, "", "", "", "", text, bar)

    def _add(self, name: str, n: str, p50: str, p95: str, most: str, note: str, bar: bool | None) -> None:
        self.good = self.good and bar is not False
        verdict = "" if bar is None else "[green]met[/]" if bar else "[red]MISSED[/]"
        self._table.add_row(name, n, p50, p95, most, verdict, note)

    def show(self) -> None:
        Console(width=160).print(self._table)
