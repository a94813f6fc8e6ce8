"""Draws the history of the figures as an SVG: one panel a figure, one point a commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bench.figures import FIGURES, Figure
from bench.result import Result, Value

COLUMNS, WIDTH, HEIGHT = 3, 330, 170
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 30, 40
"""What is left of a panel for its title and its axes."""
STYLE = """
text { font: 11px system-ui, sans-serif; fill: #444 }
.title { font-weight: 600; fill: #111 }
.line { fill: none; stroke: #1f6feb; stroke-width: 2 }
.point { fill: #1f6feb }
.band { stroke: #1f6feb; stroke-width: 1; opacity: .6 }
.grid { stroke: #ddd }
.floor { fill: none; stroke: #888; stroke-width: 1.5 }
.bar { stroke: #c2410c; stroke-dasharray: 4 3 }
"""


@dataclass(frozen=True)
class Scale:
    """Where the values of one panel are drawn: zero at the bottom."""

    count: int
    most: float

    def x(self, index: int) -> float:
        room = WIDTH - LEFT - RIGHT
        return round(LEFT + room * (index + 0.5) / self.count, 1)

    def y(self, value: float) -> float:
        room = HEIGHT - TOP - BOTTOM
        return round(HEIGHT - BOTTOM - room * value / self.most, 1)


def plot(results: Sequence[Result]) -> str:
    """An SVG. A figure that nobody measured has no panel, and a floor is a line in those that stand on it."""
    floors = {figure.floor for figure in FIGURES}
    measured = {key for result in results for key in result.figures}
    shown = [figure for figure in FIGURES if figure.key in measured - floors]
    rows = -(-len(shown) // COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>Figures by commit</title>",
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>',
    ]
    for number, figure in enumerate(shown):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_panel(figure, results), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(figure: Figure, results: Sequence[Result]) -> list[str]:
    values = [result.figures.get(figure.key) for result in results]
    known = [value for value in values if value is not None]
    most = max([value.high for value in known] + [figure.bar or 0]) * 1.1 or 1.0
    scale = Scale(len(results), most)
    better = ", more is better" if figure.more else ""
    parts = [f'<text class="title" x="8" y="16">{escape(figure.name)} ({escape(figure.unit)}{better})</text>']
    parts += _axis(scale)
    if figure.bar:
        y = scale.y(figure.bar)
        parts.append(f'<line class="bar" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"><title>bar</title></line>')
    parts.append(_line("floor", scale, [result.figures.get(figure.floor) for result in results]))
    parts.append(_line("line", scale, values))
    for index, (result, value) in enumerate(zip(results, values, strict=True)):
        parts += _point(scale, index, result, value) if value is not None else []
        parts.append(_commit(scale, index, result))
    return parts


def _line(style: str, scale: Scale, values: Sequence[Value | None]) -> str:
    """Through the points that there are; a single one is drawn as a short stroke."""
    ends = [(scale.x(index), scale.y(value.p50)) for index, value in enumerate(values) if value is not None]
    if len(ends) == 1:
        ends = [(ends[0][0] - 12, ends[0][1]), (ends[0][0] + 12, ends[0][1])]
    return f'<polyline class="{style}" points="{" ".join(f"{x:g},{y:g}" for x, y in ends)}"/>'


def _axis(scale: Scale) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        value = scale.most / 1.1 * share
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{_short(value)}</text>')
    return parts


def _point(scale: Scale, index: int, result: Result, value: Value) -> list[str]:
    x, y = scale.x(index), scale.y(value.p50)
    told = (
        f"{result.commit} {result.subject}: {value.p50:g} {value.unit} ({value.low:g} to {value.high:g}), n {value.n}"
    )
    return [
        f'<line class="band" x1="{x}" y1="{scale.y(value.low)}" x2="{x}" y2="{scale.y(value.high)}"/>',
        f'<circle class="point" cx="{x}" cy="{y}" r="3"><title>{escape(told)}</title></circle>',
        f'<text x="{x}" y="{max(y - 7, 26)}" text-anchor="middle">{_short(value.p50)}</text>',
    ]


def _commit(scale: Scale, index: int, result: Result) -> str:
    """Its name below the axis, aslant where there are many."""
    x, y = scale.x(index), HEIGHT - BOTTOM + 14
    if scale.count <= 5:
        return f'<text x="{x}" y="{y}" text-anchor="middle">{escape(result.commit[:7])}</text>'
    return f'<text x="{x}" y="{y}" text-anchor="end" transform="rotate(-40 {x} {y})">{escape(result.commit[:7])}</text>'


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"
