"""What the audit log costs: the same warm calls against a service with it and one without it, turn by turn.

python -m bench.audit [--driver oci|memory] [--rounds 60] [--chats 8]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import uvloop

from bench.http import Client
from bench.journal import Side, compare
from bench.report import Report
from bench.service import image, service
from cubicle.audit.verify import check_log


def check(folder: Path, calls: int, report: Report) -> None:
    """Every call is there, and the chain holds."""
    began = time.perf_counter()
    found = check_log(folder)
    seconds = time.perf_counter() - began
    size = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
    good = not found.problems and found.records >= calls
    text = f"{found.records:,} good, {size / max(1, found.records):.0f} bytes each; checked in {seconds:.2f} s"
    report.note(f"records of {calls:,} calls", text, good)


async def measure(kept: tuple[str, int], bare: tuple[str, int], options: argparse.Namespace, report: Report) -> int:
    chats = [f"chat-{number}" for number in range(options.chats)]
    async with aiohttp.ClientSession(kept[0]) as one, aiohttp.ClientSession(bare[0]) as two:
        sides = Side(Client(kept[0], one), kept[1], chats), Side(Client(bare[0], two), bare[1], chats)
        await compare(*sides, report, options.rounds, "audit log")
        return sides[0].calls


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", default="oci")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--chats", type=int, default=8)
    options = parser.parse_args()
    names = {"DRIVER": options.driver, "REQUIRE_WALLS": "warn"}
    if options.driver == "oci":
        names["SANDBOX_IMAGE"] = image()
    report = Report("the audit log")
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        with service(Path(one), **names) as kept, service(Path(two), AUDIT="off", **names) as bare:
            calls = uvloop.run(measure(kept, bare, options, report))
        check(Path(one) / "data" / "audit", calls, report)
    report.show()
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
