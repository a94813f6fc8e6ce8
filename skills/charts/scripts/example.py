"""example.py OUT_FOLDER: charts of every kind from a small table, drawn and checked."""

import importlib.util
import os
import sys
import xml.etree.ElementTree as tree

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import chart

TABLE = """month,sales,costs
2025-01-01,12,20
2025-02-01,15,19
2025-03-01,,19
2025-04-01,22,18
2025-05-01,27,18
"""


def main(folder):
    os.makedirs(folder, exist_ok=True)
    data = os.path.join(folder, "data.csv")
    with open(data, "w", encoding="utf-8") as file:
        file.write(TABLE)
    whole = importlib.util.find_spec("matplotlib") is not None
    kinds = ["line", "bar", "scatter"] + (["barh", "hist"] if whole else [])
    for kind in kinds:
        for ending in ("svg", "png") if whole else ("svg",):
            out = os.path.join(folder, kind + "." + ending)
            chart.main([data, out, "--kind", kind, "--x", "month", "--y", "sales,costs",
                        "--title", "Sales overtook costs in April", "--unit", "thousand €",
                        "--source", "monthly report of the shop"])
            if ending == "svg":
                assert tree.parse(out).getroot().tag.endswith("svg")
                with open(out, encoding="utf-8") as file:
                    text = file.read()
                assert "Source: monthly report of the shop" in text
                if whole:
                    assert ('id="legend' in text) == (kind != "line")
                    assert ("does not begin at zero" in text) == (kind in ("line", "scatter"))
            else:
                with open(out, "rb") as file:
                    assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    print("ok", folder, "with matplotlib" if whole else "without matplotlib (pip install matplotlib for more)")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "charts-example")
