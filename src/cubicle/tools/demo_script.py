"""What the demo does: a table, a chart, a web page, the browser, a test that fails and is fixed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FOLDER = "/home/assistant/demo"
OUTPUTS = "/mnt/user-data/outputs"
PORT = 8123

_SALES = """\
month,city,amount
Jan,Lisbon,1240
Jan,Porto,930
Feb,Lisbon,1310
Feb,Porto,905
Mar,Lisbon,1475
Mar,Porto,1080
Apr,Lisbon,1620
Apr,Porto,1145
May,Lisbon,1580
May,Porto,1260
Jun,Lisbon,1845
Jun,Porto,1390
"""

_CHART = '''\
"""Draw the sales of each month as an SVG chart, on a page of its own."""
import csv
from pathlib import Path

HERE, OUTPUTS = Path(__file__).parent, Path("/mnt/user-data/outputs")


def months(path=HERE / "sales.csv"):
    found = {}
    for row in csv.DictReader(open(path)):
        found[row["month"]] = found.get(row["month"], 0) + int(row["amount"])
    return found


def average(found):
    return sum(found.values()) / (len(found) - 1)


def svg(found):
    top = max(found.values())
    bars = "".join(
        f'<g><rect x="{30 + 120 * i}" y="{300 - 240 * v / top:.0f}" width="84" height="{240 * v / top:.0f}" rx="6"/>'
        f'<text x="{72 + 120 * i}" y="328">{month}</text>'
        f'<text x="{72 + 120 * i}" y="{288 - 240 * v / top:.0f}">{v:,}</text></g>'
        for i, (month, v) in enumerate(found.items())
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 340" font-family="sans-serif" font-size="17"'
        f' text-anchor="middle" fill="#2f6fde">{bars}</svg>'
    )


def page(found):
    return f"""<!doctype html><meta charset="utf-8"><title>Coffee sales</title><style>
body {{ font: 20px system-ui, sans-serif; margin: 40px auto; max-width: 900px; color: #1c2733 }}
button {{ font: inherit; padding: 8px 18px; border: 0; border-radius: 8px; background: #2f6fde; color: #fff }}
svg text {{ fill: #51606f }} #more {{ margin-left: 14px }}
</style><h1>Coffee sales</h1>{svg(found)}
<p><button onclick="more.hidden = false">Show the average</button>
<span id="more" hidden>Average of a month: <b>{average(found):,.0f} €</b></span></p>"""


if __name__ == "__main__":
    found = months()
    OUTPUTS.mkdir(exist_ok=True)
    (OUTPUTS / "sales.svg").write_text(svg(found))
    (HERE / "index.html").write_text(page(found))
    print(f"{len(found)} months, {sum(found.values()):,} € in total, {average(found):,.0f} € in a month")
'''

_TEST = """\
import unittest

from chart import average


class Average(unittest.TestCase):
    def test_the_average_of_three_months(self):
        self.assertEqual(average({"Jan": 10, "Feb": 20, "Mar": 30}), 20)


if __name__ == "__main__":
    unittest.main()
"""

_SERVE = f"""\
cd {FOLDER}
if [ -f server.pid ]; then kill "$(cat server.pid)" 2>/dev/null; fi
nohup python3 -m http.server {PORT} --bind 127.0.0.1 >server.log 2>&1 &
echo $! >server.pid
curl -sS --retry 20 --retry-delay 1 --retry-connrefused -o /dev/null -w '%{{http_code}} %{{url}}\\n' http://127.0.0.1:{PORT}/
"""

_BROWSE = f"""\
cubicle-browser >{FOLDER}/browser.txt && python3 - <<'END'
from playwright.sync_api import sync_playwright

with sync_playwright() as playwright:
    browser = playwright.chromium.connect_over_cdp(open("{FOLDER}/browser.txt").read().strip())
    context = browser.contexts[0]
    page = context.pages[0] if context.pages else context.new_page()
    page.goto("http://127.0.0.1:{PORT}/")
    page.bring_to_front()
    page.get_by_role("button", name="Show the average").click()
    print(page.title(), "·", page.locator("#more").inner_text())
    page.screenshot(path="{OUTPUTS}/page.png")
END
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a tool, as a model would make it."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    fails: bool = False
    """The call is to fail: the script shows how that looks, and goes on."""

    @property
    def description(self) -> str:
        return str(self.arguments["description"])


def _create(name: str, text: str, description: str) -> Step:
    return Step("create_file", {"description": description, "path": f"{FOLDER}/{name}", "file_text": text})


def _bash(command: str, description: str, *, fails: bool = False) -> Step:
    return Step("bash_tool", {"description": description, "command": command}, fails)


STEPS: tuple[Step, ...] = (
    _create("sales.csv", _SALES, "Write half a year of sales as CSV"),
    _create("chart.py", _CHART, "Write a script that draws them"),
    _bash(f"cd {FOLDER} && python3 chart.py", "Draw the chart"),
    _bash(_SERVE, f"Serve it as a web page on port {PORT}"),
    _bash(_BROWSE, "Open the page in the browser and press its button"),
    Step("view", {"description": "Look at the page", "path": f"{OUTPUTS}/page.png"}),
    _create("test_chart.py", _TEST, "Write a test of the average"),
    _bash(f"cd {FOLDER} && python3 test_chart.py", "Run the test", fails=True),
    Step(
        "str_replace",
        {
            "description": "Divide by the number of months",
            "path": f"{FOLDER}/chart.py",
            "old_str": "/ (len(found) - 1)",
            "new_str": "/ len(found)",
        },
    ),
    _bash(f"cd {FOLDER} && python3 test_chart.py && python3 chart.py", "Run the test again, and draw anew"),
    _bash(_BROWSE, "Show the corrected page"),
)
"""In their order. Each can be made again over what an earlier run left."""
