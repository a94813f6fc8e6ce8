"""Draw a chart from a CSV file: chart.py DATA.csv OUT.png --kind line --x COLUMN --y COLUMN[,COLUMN] [--title T] [--unit U] [--source S]"""

import argparse
import csv
import datetime
import os
import sys
from html import escape

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = "osD^vPX"
MAX_END_LABELS = 5


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


def read(path, x, ys):
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        sys.exit("There are no rows in %s." % path)
    missing = [name for name in [x, *ys] if name and name not in rows[0]]
    if missing:
        sys.exit("No column %s; there are: %s" % (", ".join(missing), ", ".join(rows[0])))
    labels = [row[x] for row in rows] if x else [str(i + 1) for i in range(len(rows))]
    return labels, {y: [number(row[y] or "nan") for row in rows] for y in ys}


def positions(labels):
    """Dates or numbers where all labels are such, else the labels themselves."""
    for parse in (float, datetime.datetime.fromisoformat):
        try:
            return [parse(label) for label in labels]
        except ValueError:
            continue
    return labels


def apart(places, gap):
    """The places in their order, each at least `gap` above the one below it."""
    moved, least = list(places), float("-inf")
    for index in sorted(range(len(places)), key=lambda i: places[i]):
        moved[index] = least = max(places[index], least + gap)
    return moved


def label_ends(axes):
    """The name of each line at its last point; names that would lie on each other are moved apart."""
    ends = []
    for line in axes.lines:
        points = [p for p in line.get_xydata() if p[1] == p[1]]
        if points:
            ends.append((line, points[-1], axes.transData.transform(points[-1])[1] * 72 / axes.figure.dpi))
    for (line, point, height), place in zip(ends, apart([end[2] for end in ends], 13)):
        axes.annotate(line.get_label(), point, (8, place - height), textcoords="offset points", va="center",
                      color=line.get_color(), annotation_clip=False)


def style(plt):
    plt.rcParams.update({
        "figure.figsize": (9, 5), "figure.dpi": 150, "font.size": 11, "axes.titlesize": 14, "axes.titleweight": "bold",
        "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.alpha": 0.3, "axes.axisbelow": True, "axes.prop_cycle": plt.cycler(color=COLOURS),
    })


def draw(labels, series, options):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style(plt)
    figure, axes = plt.subplots()
    places = positions(labels)
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        spots = [i + (index - (len(series) - 1) / 2) * width for i in range(len(labels))]
        if options.kind == "line":
            axes.plot(places, values, label=name, marker=MARKERS[index % 7], markersize=4)
        elif options.kind == "scatter":
            axes.scatter(places, values, label=name, marker=MARKERS[index % 7], alpha=0.8)
        elif options.kind == "bar":
            axes.bar(spots, values, width, label=name)
        elif options.kind == "barh":
            axes.barh(spots, values, width, label=name)
        else:
            axes.hist([v for v in values if v == v], bins="auto", label=name, alpha=0.7)
    value_axis = axes.xaxis if options.kind in ("barh", "hist") else axes.yaxis
    value_axis.set_label_text(options.unit)
    value_axis.set_major_formatter("{x:,.10g}")
    if options.kind == "bar":
        axes.set_xticks(range(len(labels)), labels, rotation=45 if len(labels) > 8 else 0)
        axes.set_xlabel(options.x)
    elif options.kind == "barh":
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylabel(options.x)
        axes.invert_yaxis()
    elif options.kind == "hist":
        axes.set_ylabel("count")
    if options.kind not in ("bar", "barh", "hist"):
        axes.set_xlabel(options.x)
        figure.autofmt_xdate() if isinstance(places[0], datetime.datetime) else None
    axes.set_title(options.title)
    notes = ["Source: " + options.source]
    if options.kind in ("line", "scatter"):
        low, high = axes.get_ylim()
        if low > 0 or high < 0:
            notes.append("The vertical axis does not begin at zero.")
    figure.text(0.99, -0.02, "   ".join(notes), ha="right", va="top", fontsize=8, color="#666666")
    if options.kind == "line" and len(series) <= MAX_END_LABELS:
        label_ends(axes)
    elif len(series) > 1:
        axes.legend(frameon=False)
    figure.savefig(options.out, bbox_inches="tight")
    plt.close(figure)


def draw_svg(labels, series, options):
    """Without matplotlib: line, bar and scatter charts as SVG."""
    if options.kind not in ("line", "bar", "scatter") or not options.out.endswith(".svg"):
        print("matplotlib is missing here. Get it with: pip install matplotlib (or ask for a line, bar or scatter"
              " chart as .svg)", file=sys.stderr)
        sys.exit(3)
    values = [v for line in series.values() for v in line if v == v] or [0.0]
    low, high = min(0.0, *values), max(values)
    high = high if high > low else low + 1
    at_ends = options.kind == "line" and len(series) <= MAX_END_LABELS
    room = min(240, 10 + 7 * max(map(len, series))) if at_ends else 0
    left, top, width, height = 80, 60, 640 - room, 300

    def up(value):
        return top + height * (1 - (value - low) / (high - low))

    step = width / len(labels)
    parts = ['<text x="%d" y="32" font-size="18" font-weight="bold">%s</text>' % (left, escape(options.title))]
    for tick in range(6):
        value = low + (high - low) * tick / 5
        parts.append('<path d="M%d %.1fh%d" stroke="#ddd"/>' % (left, up(value), width))
        parts.append('<text x="%d" y="%.1f" text-anchor="end">%s</text>' % (left - 8, up(value) + 4, f"{value:,.4g}"))
    every = max(1, len(labels) // 12)
    for index, label in enumerate(labels[::every]):
        place = left + (index * every + 0.5) * step
        parts.append('<text x="%.1f" y="%d" text-anchor="middle">%s</text>' % (place, top + height + 20, escape(label)))
    ends = [next((up(v) for v in reversed(line) if v == v), top) for line in series.values()]
    heights = apart(ends, 14)
    for order, (name, line) in enumerate(series.items()):
        colour = COLOURS[order % 7]
        spots = [(left + (i + 0.5) * step, up(v), v) for i, v in enumerate(line) if v == v]
        if options.kind == "bar":
            bar = step * 0.8 / len(series)
            for x, y, v in spots:
                at = x - step * 0.4 + order * bar
                size = (at, min(y, up(0)), bar, abs(up(0) - y), colour)
                parts.append('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>' % size)
        else:
            if options.kind == "line":
                path = "L".join("%.1f %.1f" % spot[:2] for spot in spots)
                parts.append('<path d="M%s" fill="none" stroke="%s" stroke-width="2"/>' % (path, colour))
            parts += ['<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>' % (x, y, colour) for x, y, _ in spots]
        last = max((x for x, _, _ in spots), default=left)
        x, y = (last + 8, heights[order] + 4) if at_ends else (left + order * 130, top - 8)
        parts.append('<text x="%d" y="%d" fill="%s">%s</text>' % (x, y, colour, escape(name)))
    foot = top + height + 44
    parts.append('<text x="%d" y="%d" fill="#666">%s</text>' % (left, foot, escape(options.unit)))
    parts.append('<text x="%.1f" y="%d" text-anchor="middle">%s</text>' % (left + width / 2, foot, escape(options.x)))
    parts.append('<text x="720" y="412" text-anchor="end" font-size="10" fill="#666">Source: %s</text>'
                 % escape(options.source))
    with open(options.out, "w", encoding="utf-8") as file:
        file.write('<svg xmlns="http://www.w3.org/2000/svg" width="760" height="420" viewBox="0 0 760 420"'
                   ' font-family="sans-serif" font-size="12"><rect width="760" height="420" fill="#fff"/>'
                   + "".join(parts) + "</svg>\n")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--kind", choices=["line", "bar", "barh", "scatter", "hist"], default="line")
    parser.add_argument("--x", default="")
    parser.add_argument("--y", required=True)
    parser.add_argument("--title", default="")
    parser.add_argument("--unit", default="")
    parser.add_argument("--source", default="", help="where the numbers are from; the name of the data file unless said")
    options = parser.parse_args(arguments)
    options.source = options.source or os.path.basename(options.data)
    labels, series = read(options.data, options.x, options.y.split(","))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        draw_svg(labels, series, options)
    else:
        draw(labels, series, options)
    print(options.out)


if __name__ == "__main__":
    main(sys.argv[1:])
