"""GET /metrics of a whole service: what is counted, and what never becomes a label."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect

from cubicle import settings
from cubicle.app import running
from cubicle.drivers.factory import make_driver
from cubicle.egress.tally import EgressReport, EgressTally
from cubicle.http_api.request_metrics import GROUPS
from cubicle.metrics.loop_lag import LoopLag
from cubicle.metrics.metrics import CONTENT_TYPE, OTHER, Metrics
from cubicle.tools.outcomes import OUTCOMES
from cubicle.worker.egress_reports import EgressReports, counted_by
from tests.support.emptying import empty
from tests.support.service import ACCEPT, serve

KEY = {"Authorization": "Bearer operator-key"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Site:
    url: str
    client: httpx.AsyncClient

    async def bash(self, command: str, *, key: str = "operator-key", chat: str = "secret-chat") -> None:
        arguments = {"command": command, "description": "test"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        headers = {
            "Accept": ACCEPT,
            "X-Chat-Id": chat,
            "X-User-Email": "person@example.org",
            "Authorization": f"Bearer {key}",
        }
        answer = await self.client.post(
            "/mcp", json=body | {"params": {"name": "bash_tool", "arguments": arguments}}, headers=headers
        )
        assert answer.status_code == 200

    async def samples(self) -> Samples:
        return parsed((await self.client.get("/metrics", headers=KEY)).text)


def parsed(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def named(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "keys.json").write_text(json.dumps({"customer-key": "acme"}))
    chosen = settings.load(
        driver="memory",
        data_dir=folder / "data",
        pool_size=1,
        mcp_api_key="operator-key",
        api_keys_file=folder / "keys.json",
        metrics_token="a-metrics-token",
    )
    async with (
        running(chosen) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield Site(url, client)
    await empty(make_driver(chosen))


async def test_calls_are_counted_by_tool_and_outcome(site: Site) -> None:
    before = await site.samples()
    await site.bash("true")
    await site.bash("exit 3")
    after = await site.samples()
    for outcome in ("done", "failed"):
        name = named("cubicle_tool_calls_total", tool="bash_tool", outcome=outcome)
        assert after[name] - before.get(name, 0) == 1
    count = named("cubicle_tool_call_seconds_count", tool="bash_tool")
    assert after[count] - before.get(count, 0) == 2
    assert after[named("cubicle_tool_calls_running", tool="bash_tool")] == 0


async def test_sandboxes_pool_leases_and_round_trips_are_there(site: Site) -> None:
    await site.bash("true")
    found = await site.samples()
    assert found[named("cubicle_sandboxes", state="running")] >= 1
    assert found[named("cubicle_sandbox_leases")] == 0
    assert found[named("cubicle_pool_size")] == 1
    assert found[named("cubicle_guest_round_trip_seconds_count")] > 0
    assert found[named("cubicle_disk_free_bytes")] > 0


async def test_new_sandboxes_and_those_started_again_are_counted(site: Site) -> None:
    made, again = (named("cubicle_sandbox_starts_total", what=what) for what in ("created", "started"))
    before = await site.samples()
    chat = "counted"
    for _ in range(2):
        await site.bash("true", chat=chat)
    first = await site.samples()
    assert (first[made] - before[made], first[again] - before[again]) == (1, 0)
    assert (await site.client.post(f"/api/sandboxes/{chat}/stop", headers=KEY)).status_code == 200
    await site.bash("true", chat=chat)
    then = await site.samples()
    assert (then[made] - first[made], then[again] - first[again]) == (0, 1)


async def test_the_loop_lag_is_measured(site: Site) -> None:
    async with asyncio.timeout(30):
        while not (await site.samples())[named("cubicle_loop_lag_seconds_count")]:
            await asyncio.sleep(0.05)


async def test_requests_are_counted_by_their_group_of_routes(site: Site) -> None:
    await site.client.get("/health")
    await site.client.get("/nothing/../of/the/kind", headers=KEY)
    found = await site.samples()
    assert found[named("cubicle_http_requests_total", route="service", status="2xx")] >= 1
    routes = {dict(labels)["route"] for name, labels in found if name.startswith("cubicle_http_requests_total")}
    assert routes <= GROUPS


async def test_websockets_are_counted_while_they_are_open(site: Site) -> None:
    name = named("cubicle_websockets", route="ports")
    url = site.url.replace("http", "ws") + "/api/chats/secret-chat/ports/4/tcp"
    async with connect(url, proxy=None, additional_headers=KEY) as socket:
        await socket.wait_closed()
    async with asyncio.timeout(30):
        while (await site.samples()).get(name, 1) != 0:
            await asyncio.sleep(0.05)


async def test_no_label_names_a_chat_a_user_or_a_tenant(site: Site) -> None:
    await site.bash("true", key="customer-key")
    text = (await site.client.get("/metrics", headers=KEY)).text
    for secret in ("secret-chat", "person@", "acme", "customer-key"):
        assert secret not in text


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer operator-key", 200),
        ("Bearer a-metrics-token", 200),
        ("Bearer customer-key", 401),
        ("Bearer wrong-token", 401),
        ("Basic a-metrics-token", 401),
        ("", 401),
    ],
)
async def test_the_metrics_are_guarded(site: Site, authorization: str, status: int) -> None:
    answer = await site.client.get("/metrics", headers={"Authorization": authorization} if authorization else {})
    assert answer.status_code == status
    assert ("cubicle_" in answer.text) == (status == 200)
    if status == 200:
        assert answer.headers["Content-Type"] == CONTENT_TYPE


async def test_the_metrics_token_opens_nothing_else(site: Site) -> None:
    for path in ("/api/sandboxes", "/health/disk", "/openapi.json", "/files/x"):
        answer = await site.client.get(path, headers={"Authorization": "Bearer a-metrics-token"})
        assert answer.status_code == 401, path


async def test_a_service_without_a_key_still_asks_for_the_metrics_token(tmp_path: Path) -> None:
    chosen = settings.load(driver="memory", data_dir=tmp_path / "data", pool_size=0, metrics_token="a-metrics-token")
    async with running(chosen) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.get("/metrics")).status_code == 401
            answer = await client.get("/metrics", headers={"Authorization": "Bearer a-metrics-token"})
            assert answer.status_code == 200


async def test_probes_and_prometheus_ask_by_address_whatever_hosts_are_named(tmp_path: Path) -> None:
    """A cluster asks its pods so: one that refused would be killed again and again."""
    said = {"mcp_api_key": "operator-key", "metrics_token": "a-metrics-token", "allowed_hosts": "box.example"}
    chosen = settings.load(driver="memory", data_dir=tmp_path / "data", pool_size=0, **said)
    async with running(chosen) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://10.42.0.7:8081") as client:
            assert (await client.get("/health")).status_code == 200
            answer = await client.get("/metrics", headers={"Authorization": "Bearer a-metrics-token"})
            assert answer.status_code == 200
            for path in ("/metrics", "/mcp-info", "/health/disk"):
                assert (await client.get(path, headers=KEY)).status_code == 403, path


def test_a_bad_metrics_token_stops_the_start_and_is_not_shown() -> None:
    with pytest.raises(settings.BadSettings) as error:
        settings.load(metrics_token="s3cret")
    assert "METRICS_TOKEN" in str(error.value)
    assert "s3cret" not in str(error.value)


def test_labels_of_tenants_are_bounded() -> None:
    metrics = Metrics(tenants=True)
    for number in range(1000):
        metrics.call_began("bash_tool")
        metrics.call_ended("bash_tool", OUTCOMES[0], 0.1, f"tenant-{number}")
    found = parsed(metrics.text().decode())
    calls = {dict(labels)["tenant"]: n for (name, labels), n in found.items() if name == "cubicle_tool_calls_total"}
    assert len(calls) == 201
    assert calls[OTHER] == 800


def test_egress_is_counted_by_decision_and_what_is_no_report_is_left_out() -> None:
    metrics, reports = Metrics(), EgressReports()
    reports.listen(counted_by(metrics))
    from cubicle.core.chat import Chat

    good = EgressReport(Chat("a"), EgressTally(3, 2, 1, 10, 20)).packed()
    reports.take({"egress": [good, ["a", "main", 1], good]})
    reports.take({"egress": "x"})
    reports.take({"egress": [[".bad", "main", 1, 1, 1, 1, 1]]})
    found = parsed(metrics.text().decode())
    assert found[named("cubicle_egress_decisions_total", decision="denied")] == 2
    assert found[named("cubicle_egress_bytes_total", direction="received")] == 20


def test_one_stall_is_no_typical_lag() -> None:
    lag = LoopLag(lambda seconds: None)
    for late in (0.0, 0.0, 5.0):
        lag.note(late)
    assert lag.typical == 0.0
    for _ in range(20):
        lag.note(1.0)
    assert lag.typical == 1.0


@pytest.mark.serial
def test_counting_a_call_takes_less_than_a_hundredth_of_a_warm_call() -> None:
    """A warm call takes milliseconds (docs/measurements.md); what is counted of it takes microseconds."""
    metrics, rounds = Metrics(tenants=True), 2000
    began = time.thread_time()
    for _ in range(rounds):
        metrics.call_began("bash_tool")
        metrics.call_ended("bash_tool", "done", 0.004, "acme")
        metrics.request_ended("mcp", 200, 0.005)
        metrics.round_trip.observe(0.001)
    each = (time.thread_time() - began) / rounds
    assert each < 0.00003, f"{each * 1e6:.1f} µs"
