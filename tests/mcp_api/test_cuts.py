"""Many calls at once over connections that are cut at random: none is lost, and none is done twice."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubicle.journal.journal import Journal
from cubicle.sandbox.fleet import Fleet
from tests.mcp_api.test_resumption import parsed
from tests.mcp_api.test_streaming import call
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.service import ACCEPT, Options, Service, service_of

CALLS = 60
AT_ONCE = 6


@pytest.fixture
async def service(fleet: Fleet, tmp_path: Path) -> AsyncIterator[Service]:
    """With a journal: who was cut off before the first event, and comes back after the end, gets the answer from there."""
    async with Journal(tmp_path / "journal") as journal, service_of(fleet, Options(journal=journal)) as service:
        yield service


class Client:
    """One that sends its request again until it has an event, and from then on resumes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._headers = {
            "Accept": ACCEPT,
            "Content-Type": "application/json",
            "X-Chat-Id": "cuts",
            "Mcp-Session-Id": str(uuid.uuid4()),
            "MCP-Protocol-Version": "2025-11-25",
        }
        self.losses = 0

    async def run(self, number: int) -> dict[str, Any]:
        command = f"echo {number} >> done-0; for i in 1 2 3 4; do echo {number}-$i; sleep 0.05; done"
        body = json.dumps(call(command, identity=number, token=f"t{number}"))
        last = ""
        while True:
            try:
                async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as http:
                    request = (
                        http.stream("GET", f"{self._url}/mcp", headers=self._headers | {"Last-Event-ID": last})
                        if last
                        else http.stream("POST", f"{self._url}/mcp", content=body, headers=self._headers)
                    )
                    async with request as response:
                        assert response.status_code == 200
                        async for event in parsed(response):
                            last = event["id"]
                            if event["data"] and "method" not in (message := json.loads(event["data"])):
                                answer: dict[str, Any] = message
                                return answer
            except httpx.TransportError:
                pass
            self.losses += 1


async def cut_now_and_then(proxy: CuttingProxy) -> None:
    """Now and then everything stands still as well: calls end before their clients come back."""
    choose = random.Random(7)
    while True:
        await asyncio.sleep(choose.uniform(0.02, 0.4))
        proxy.cut()
        stands_still = time.monotonic() + (0.3 if choose.random() < 0.2 else 0)
        while time.monotonic() < stands_still:
            pass


@pytest.mark.serial
async def test_calls_over_connections_that_are_cut_are_answered_and_done_once(service: Service) -> None:
    waiting = iter(range(1, CALLS + 1))
    answers: dict[int, dict[str, Any]] = {}
    async with cutting_proxy(service.url) as proxy:
        client = Client(proxy.url)

        async def work() -> None:
            for number in waiting:
                answers[number] = await client.run(number)

        cutting = asyncio.create_task(cut_now_and_then(proxy))
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        cutting.cancel()
    assert client.losses > 10
    for number, answer in answers.items():
        text = answer["result"]["content"][0]["text"]
        assert text == "".join(f"{number}-{part}\n" for part in (1, 2, 3, 4)), answer
    done = await service.bash("sort -n done-0", chat="cuts")
    assert done.split() == [str(number) for number in range(1, CALLS + 1)]
