"""Plays a short chat against a real service and takes a picture of its workspace. Started by scripts/screenshot."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.async_api import Page, async_playwright, expect

CHAT = "quarterly-report"
SIZE = {"width": 1440, "height": 820}
READY_SECONDS = 120
CITIES = {"Lisbon": 1.35, "Porto": 1.0, "Faro": 0.7, "Braga": 0.55}

REPORT = '''\
"""Sum the sales of each city and draw them as one page."""
import csv
from collections import defaultdict
from pathlib import Path

rows = list(csv.DictReader(open("/mnt/user-data/uploads/sales.csv")))
totals, months = defaultdict(float), defaultdict(float)
for row in rows:
    totals[row["city"]] += float(row["amount"])
    months[row["month"]] += float(row["amount"])

best = max(totals.values())
bars = "".join(
    f'<p><b>{city}</b><i style="width:{60 * total / best:.0f}%"></i> {total:,.0f} €</p>'
    for city, total in sorted(totals.items(), key=lambda item: -item[1])
)
top = max(months.values())
line = " ".join(f"{40 + 94 * i},{230 - 200 * v / top:.0f}" for i, (_, v) in enumerate(sorted(months.items())))
dots = "".join(
    f'<circle cx="{40 + 94 * i}" cy="{230 - 200 * v / top:.0f}" r="5"/>'
    f'<text x="{40 + 94 * i}" y="262">{month}</text>'
    for i, (month, v) in enumerate(sorted(months.items()))
)
page = f"""<!doctype html><meta charset="utf-8"><title>Sales</title><style>
body {{ font: 19px system-ui, sans-serif; margin: 44px 64px; color: #1c2733 }}
h1 {{ font-size: 40px; margin: 0 }} h2 {{ margin: 40px 0 12px; font-size: 22px; color: #51606f }}
p {{ display: flex; align-items: center; gap: 14px; margin: 12px 0 }} b {{ width: 90px }}
i {{ height: 30px; background: #2f6fde; border-radius: 4px }}
svg {{ width: 1120px; height: 275px }} polyline {{ fill: none; stroke: #e0663c; stroke-width: 4 }}
circle {{ fill: #e0663c }} text {{ font-size: 15px; text-anchor: middle; fill: #51606f }}
</style><h1>Sales 2026</h1>{sum(totals.values()):,.0f} € in {len(rows)} rows
<h2>By city</h2>{bars}<h2>By month</h2><svg viewBox="0 0 1120 275"><polyline points="{line}"/>{dots}</svg>"""
Path("/mnt/user-data/outputs/report.html").write_text(page)
print(f"{len(rows)} rows, {len(totals)} cities, {sum(totals.values()):,.2f} € in total")
'''

STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "bash_tool",
        {
            "command": "cd /mnt/user-data/uploads && wc -l sales.csv && head -4 sales.csv",
            "description": "Look at the uploaded file",
        },
    ),
    (
        "create_file",
        {"path": "/home/assistant/report.py", "file_text": REPORT, "description": "Write the report script"},
    ),
    ("bash_tool", {"command": "python3 report.py", "description": "Make the report"}),
    (
        "str_replace",
        {
            "path": "/home/assistant/report.py",
            "old_str": "<h1>Sales 2026</h1>",
            "new_str": "<h1>Coffee sales, 2026</h1>",
            "description": "Say in the title what is sold",
        },
    ),
    (
        "bash_tool",
        {
            "command": "python3 report.py && ls -l /mnt/user-data/outputs",
            "description": "Make it again",
        },
    ),
    (
        "bash_tool",
        {
            "command": 'curl -s -X PUT "$(cubicle-browser)/json/new?file:///mnt/user-data/outputs/report.html" | '
            "jq -r '.title, .url'",
            "description": "Open the report in the browser",
        },
    ),
)

# Opened in the picture: an edit, as a diff. A call that runs is open by itself.
OPENED = ("Say in the title",)
LAST_LINE = "Porto: 108 rows"
CHECK = (
    "bash_tool",
    {
        "command": "for city in Lisbon Porto Faro Braga; do\n"
        '  awk -F, -v c="$city" \'$2 == c { n++; s += $3 } END { printf "%s: %d rows, %.2f\\n", c, n, s }\' '
        "/mnt/user-data/uploads/sales.csv\n"
        "  sleep 5\n"
        "done",
        "description": "Check the totals in another way",
    },
)


def sales() -> str:
    """The same made-up table each time."""
    dice = random.Random(8)  # noqa: S311 — a table for a picture
    lines = ["month,city,amount"]
    for month in range(1, 13):
        for city, weight in CITIES.items():
            lines += [
                f"2026-{month:02},{city},{weight * dice.uniform(700, 1100) * (1 + month / 14):.2f}" for _ in range(9)
            ]
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """`cubicle serve` over a data folder of its own; afterwards nothing of it is left."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"PORT": str(port), "DATA_DIR": str(folder / "data"), "SANDBOX_IMAGE": "standard"}
    process = await asyncio.create_subprocess_exec("cubicle", "serve", cwd=folder, env=environment)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            async with asyncio.timeout(READY_SECONDS):
                while not await _healthy(client):
                    if process.returncode is not None:
                        sys.exit("the service did not start: see above")
                    await asyncio.sleep(0.1)
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        gone = await asyncio.create_subprocess_exec("cubicle", "rm", "--all", "--now", cwd=folder, env=environment)
        await gone.wait()


async def _healthy(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


async def call(client: httpx.AsyncClient, tool: str, arguments: dict[str, Any]) -> None:
    """One tool call, as an MCP client makes it."""
    params = {"name": tool, "arguments": arguments}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": CHAT}
    answer = (await client.post("/mcp", json=body, headers=headers)).raise_for_status().text
    last = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith(("data: ", "{"))][-1]
    result = json.loads(last)["result"]
    if result["isError"]:
        sys.exit(f"{tool}: {result['content'][0]['text']}")


async def pose(page: Page, url: str) -> bytes:
    """The workspace with Activity on the left and the model's browser on the right; the last call still runs."""
    await page.goto(url)
    await page.evaluate("""localStorage.setItem("cubicle.panes", '["activity", "browser"]')""")
    await page.evaluate("""localStorage.setItem("cubicle.share", "0.42")""")
    await page.goto(url)
    await expect(page.locator(".call")).to_have_count(len(STEPS) + 1)
    for description in OPENED:
        await page.locator(".call", has_text=description).first.locator("summary, button").first.click()
    await expect(page.get_by_text(LAST_LINE)).to_be_visible(timeout=60_000)
    await page.wait_for_timeout(2000)  # the picture of the live browser comes in frames
    return await page.screenshot()


def write(png: bytes, target: Path) -> None:
    """With a palette: the picture has few colours, and a third of the size."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    sys.stdout.write(f"{target}: {target.stat().st_size / 1000:.0f} KB\n")


async def main(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cubicle-screenshot-") as folder:
        async with service(Path(folder)) as client, async_playwright() as playwright:
            (await client.post(f"/api/uploads/{CHAT}/sales.csv", content=sales().encode())).raise_for_status()
            (await client.post(f"/browser/{CHAT}/start")).raise_for_status()
            for tool, arguments in STEPS:
                await call(client, tool, arguments)
            checking = asyncio.create_task(call(client, *CHECK))
            browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            page = await browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
            picture = await pose(page, f"{client.base_url}/preview/{CHAT}/")
            await browser.close()
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)
    write(picture, target)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
