"""One chat floods the network worker: another one hardly notices, and memory stays bounded."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import pytest

from cubicle.machine.machine import Machine
from tests.egress.servers import http_server
from tests.worker.conftest import CHAT, OTHER, Ground, shell
from tests.worker.floods import ATTACK, KINDS, source_and_sink

pytestmark = pytest.mark.anyio

MAX_GROWTH = 220 << 20
"""Of the worker's memory: 64 MiB that one chat may have unread, 16 MiB in flight, what connections cost, and room for the allocator."""

VISIT = r"""
import json, os, sys, time, urllib.request
times = []
for _ in range(30):
    began = time.monotonic()
    handler = urllib.request.ProxyHandler({"http": os.environ["http_proxy"]})
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""
    urllib.request.build_opener(handler).open(sys.argv[1], timeout=60).read()
    times.append(time.monotonic() - began)
print(json.dumps(sorted(times)))
"""


def memory_of(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


async def visit(machine: Machine, url: str) -> list[float]:
    """How long requests took, in seconds."""
    said = await shell(machine, f"python3 - {url} <<'END'\n{VISIT}\nEND")
    return json.loads(said)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_flood_of_one_chat_leaves_the_others_and_the_memory_alone(
    ground: Ground, tmp_path: Path, kind: str
) -> None:
    attacker, bystander = await ground.machine(CHAT), await ground.machine(OTHER)
    worker = ground.network.pid
    assert worker is not None
    with http_server(tmp_path) as server, source_and_sink() as ports:
        url = f"http://127.0.0.1:{server.port}/echo"
        quiet = await visit(bystander, url)
        before = memory_of(worker)
        attack = ["python3", "-c", ATTACK, kind, "400", *map(str, ports)]
        async with attacker.run(attack) as flood:
            async with asyncio.timeout(120):
                _, said = await anext(aiter(flood.output))
            assert said == b"ready\n"
            began = time.monotonic()
            flooded = await visit(bystander, url)
            peak = memory_of(worker)
            ping = time.monotonic()
            await attacker.ping()
            print(
                f"{kind}: quiet p50 {quiet[15] * 1e3:.1f} ms, flooded p50 {flooded[15] * 1e3:.1f} p90 {flooded[27] * 1e3:.1f} max {flooded[-1] * 1e3:.1f} ms, "
                f"memory +{(peak - before) >> 20} MiB, {ping - began:.1f} s"
            )
            await flood.kill()
    assert ground.network.pid == worker
    assert peak - before < MAX_GROWTH
    assert flooded[15] < max(0.25, 20 * quiet[15])
