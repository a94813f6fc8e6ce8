"""The numbers of the admin page: who sees what, that they are those of /metrics, and that they come by themselves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cubicle import settings
from cubicle.app import running
from cubicle.chat.key_file import change_file
from cubicle.core.api_keys import ApiKey, KeyFile
from cubicle.core.chat import Chat
from cubicle.core.identity import Identity, Role
from cubicle.drivers.factory import make_driver
from cubicle.http_api.overview_models import SORTS
from cubicle.http_api.sandbox_stats import SandboxUse
from cubicle.http_api.sandbox_table import Entry, View, chosen, page_of
from cubicle.sandbox.driver import State
from cubicle.sandbox.slot import Overview
from tests.support.emptying import empty
from tests.support.service import ACCEPT, serve
from tests.webhooks.receiver import written

OPERATOR = {"Authorization": "Bearer operator-key"}
ACME = {"Authorization": "Bearer customer-key"}
OTHER = {"Authorization": "Bearer another-key"}


@dataclass
class Site:
    url: str
    keys: Path
    client: httpx.AsyncClient

    async def bash(self, command: str, chat: str = "room", who: dict[str, str] = ACME, user: str = "") -> None:
        params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"Accept": ACCEPT, "X-Chat-Id": chat, **who} | ({"X-User-Email": user} if user else {})
        assert (await self.client.post("/mcp", json=body, headers=headers)).status_code == 200

    async def overview(self, who: dict[str, str], **query: str) -> dict[str, Any]:
        answer = await self.client.get("/api/overview", headers=who, params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    @asynccontextmanager
    async def events(self, who: dict[str, str], query: str = "") -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        async with self.client.stream("GET", f"/api/overview/events{query}", headers=who) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield _events(answer)


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def key_file() -> KeyFile:
    file = KeyFile.empty().with_key("operator-key", ApiKey("oper1", "main", Role.OPERATOR))
    return file.with_key("customer-key", ApiKey("acme1", "acme")).with_key("another-key", ApiKey("othr1", "other"))


@asynccontextmanager
async def site_of(folder: Path, **more: Any) -> AsyncIterator[Site]:
    folder.mkdir(exist_ok=True)
    keys = folder / "keys.json"
    if not keys.exists():
        keys.write_text(key_file().text())
    chosen = settings.load(
        driver="memory", data_dir=folder / "data", pool_size=0, api_keys_file=keys, shed_memory_mb=0, **more
    )
    try:
        async with (
            running(chosen) as app,
            serve(app) as url,
            httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
        ):
            yield Site(url, keys, client)
    finally:
        await empty(make_driver(chosen))


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with site_of(tmp_path_factory.mktemp("site"), tenant_max_sandboxes=50, tenant_egress_mb_per_day=7) as site:
        await site.bash("true", "acme-1", ACME, "ann@example.org")
        await site.bash("exit 3", "acme-1", ACME, "ann@example.org")
        await site.bash("true", "other-1", OTHER)
        await site.bash("true", "main-1", OPERATOR)
        yield site


def chats(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["tenant"], row["chat"]) for row in found["sandboxes"]["rows"]]


async def test_an_operator_sees_every_tenant_and_a_user_only_their_own(site: Site) -> None:
    everything = await site.overview(OPERATOR, tenant="*")
    assert {("acme", "acme-1"), ("other", "other-1"), ("main", "main-1")} <= set(chats(everything))
    assert {"acme", "other", "main"} <= {row["tenant"] for row in everything["tenants"]["rows"]}
    assert {"host", "isolation"} <= everything["service"].keys()
    own = await site.overview(ACME)
    assert {tenant for tenant, _ in chats(own)} == {"acme"}
    assert [row["tenant"] for row in own["tenants"]["rows"]] == ["acme"]
    assert {problem["tenant"] for problem in own["problems"]} <= {"acme"}
    assert not {"host", "isolation"} & own["service"].keys()
    assert "day" not in own["history"]
    text = json.dumps(own)
    assert "other" not in text.replace("another", "")
    assert "main-1" not in text


@pytest.mark.parametrize("path", ["/api/overview", "/api/overview/events"])
async def test_a_user_may_not_ask_for_others(site: Site, path: str) -> None:
    for tenant in ("*", "other", "main"):
        assert (await site.client.get(path, headers=ACME, params={"tenant": tenant})).status_code == 403
    assert (await site.client.get(path)).status_code == 401
    assert (await site.client.get(path, headers=OPERATOR, params={"tenant": "no tenant"})).status_code == 400


@pytest.mark.parametrize(
    "query",
    ["sort=evil", "state=evil", "offset=-1", "offset=x", "limit=1e9", "limit=%F0%9F%92%A9", "offset=9999999999"],
)
async def test_a_question_that_cannot_be_is_refused(site: Site, query: str) -> None:
    assert (await site.client.get(f"/api/overview?{query}", headers=ACME)).status_code == 400


async def test_the_numbers_are_those_of_metrics(site: Site) -> None:
    await site.bash("exit 1", "acme-1")
    found = await site.overview(OPERATOR, tenant="*")
    text = (await site.client.get("/metrics", headers=OPERATOR)).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def total(name: str, **labels: str) -> float:
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    counters = found["service"]["host"]["counters"]
    for name in ("cubicle_tool_calls_total", "cubicle_egress_decisions_total", "cubicle_quota_refusals_total"):
        assert counters[name] == total(name), name
    hour = found["service"]["last_hour"]
    assert hour["calls"] == total("cubicle_tool_calls_total")
    assert hour["outcomes"]["failed"] == total("cubicle_tool_calls_total", outcome="failed")
    assert hour["errors"] >= 2
    assert found["service"]["sandboxes"]["running"] == total("cubicle_sandboxes", state="running")
    assert found["service"]["host"]["pool_size"] == total("cubicle_pool_size")
    assert sum(row["calls"] for row in found["tenants"]["rows"]) == hour["calls"]
    assert sum(found["history"]["hour"]["calls"]) == sum(found["history"]["day"]["calls"]) == hour["calls"]


async def test_operators_see_the_audit_log_and_what_webhooks_wait(tmp_path: Path) -> None:
    file = written(tmp_path / "webhooks.toml", {"name": "ops", "url": "http://127.0.0.1:1/", "events": ["sandbox.*"]})
    async with site_of(tmp_path / "site", webhooks_file=file) as site:
        await site.bash("true")
        host = (await site.overview(OPERATOR))["service"]["host"]
        assert (host["audit"], host["webhooks"]) == ("written", True)
        assert (host["webhooks_waiting"], host["webhooks_dead"]) == (1, 0)
        text = (await site.client.get("/metrics", headers=OPERATOR)).text
        assert 'cubicle_webhooks{state="waiting"} 1.0' in text
        assert "cubicle_audit_failing 0.0" in text


async def test_a_row_has_user_tool_use_and_errors(site: Site) -> None:
    row = (await site.overview(ACME, q="acme-1"))["sandboxes"]["rows"][0]
    assert (row["state"], row["last_tool"]) == ("running", "bash_tool")
    assert row["errors"] >= 1
    assert row["disk_bytes"] is not None or row["memory_bytes"] is not None or row["cpu_percent"] is None
    assert abs(row["since"] - time.time()) < 600


async def test_quotas_and_budgets_are_shown(site: Site) -> None:
    (row,) = (await site.overview(ACME))["tenants"]["rows"]
    quotas = {each["limit"]: each for each in row["quotas"]}
    assert quotas["sandboxes"] == {"limit": "sandboxes", "used": row["running"], "most": 50}
    assert quotas["egress_bytes_per_day"]["most"] == 7 << 20
    assert row["budget"]["dollars"] == 0


async def test_a_problem_is_sent_without_being_asked_for(site: Site) -> None:
    async with asyncio.timeout(60), site.events(ACME) as events:
        first = await anext(events)
        assert {"now", "service", "tenants", "problems", "history", "sandboxes"} == first.keys()
        before = sum(each["count"] for each in first["problems"])
        await site.bash("exit 7", "live-1")
        seen: dict[str, Any] = dict(first)
        async for part in events:
            seen |= part
            if sum(each["count"] for each in seen["problems"]) > before and ("acme", "live-1") in chats(seen):
                break
        assert seen["service"]["last_hour"]["errors"] > first["service"]["last_hour"]["errors"]


async def test_what_others_do_is_not_sent_to_a_tenant(site: Site) -> None:
    async with asyncio.timeout(60), site.events(OTHER) as events:
        seen = await anext(events)
        await site.bash("exit 9", "noise", ACME)
        await site.bash("true", "own-noise", OTHER)
        async for part in events:
            seen |= part
            if ("other", "own-noise") in chats(seen):
                break
        assert '"noise"' not in json.dumps(seen)
        assert "acme" not in json.dumps(seen)


async def test_an_operator_stops_and_removes_what_is_another_tenants(site: Site) -> None:
    await site.bash("true", "doomed", ACME)
    stopped = await site.client.post("/api/sandboxes/doomed/stop", headers=OPERATOR, params={"tenant": "acme"})
    assert stopped.status_code == 200
    row = (await site.overview(OPERATOR, tenant="acme", q="doomed"))["sandboxes"]["rows"][0]
    assert (row["state"], row["tenant"]) == ("stopped", "acme")
    for who, tenant, status in ((OTHER, "acme", 403), (OTHER, "", 404), (OPERATOR, "acme", 204)):
        answer = await site.client.delete("/api/sandboxes/doomed", headers=who, params={"tenant": tenant})
        assert answer.status_code == status
    assert (await site.overview(OPERATOR, tenant="acme", q="doomed"))["sandboxes"]["matching"] == 0


async def test_a_key_that_is_revoked_ends_the_stream(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site, asyncio.timeout(60):
        async with site.events(ACME) as events:
            await anext(events)
            await asyncio.to_thread(change_file, site.keys, lambda file: file.with_changed("acme1", revoked=1))
            with pytest.raises((httpx.HTTPError, StopAsyncIteration)):
                while True:
                    await anext(events)
        assert (await site.client.get("/api/overview/events", headers=ACME)).status_code == 401


async def test_a_restart_keeps_the_history_and_a_removed_chat_leaves_it(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site:
        await site.bash("exit 1", "kept", ACME)
        await site.bash("exit 1", "removed", ACME)
        assert (await site.client.delete("/api/sandboxes/removed", headers=ACME)).status_code == 204
        before = await site.overview(OPERATOR, tenant="*")
    async with site_of(tmp_path) as site:
        after = await site.overview(OPERATOR, tenant="*")
        assert after["service"]["last_hour"]["outcomes"] == before["service"]["last_hour"]["outcomes"] != {}
        assert [problem["chat"] for problem in after["problems"]] == ["kept"]
        assert sum(after["history"]["day"]["errors"]) == 2
    files = list((tmp_path / "data" / "metrics").iterdir())
    assert not any("removed" in file.read_text() for file in files)


async def test_who_waits_in_the_queue_is_shown_with_the_position(tmp_path: Path) -> None:
    async with site_of(tmp_path, max_sandboxes=1, start_queue_seconds=60) as site, asyncio.timeout(60):
        await site.bash("true", "first", OTHER)
        waiting = asyncio.create_task(site.bash("true", "second", ACME, "ann@example.org"))
        async with site.events(OPERATOR, "?tenant=*") as events:
            seen: dict[str, Any] = {}
            async for part in events:
                seen |= part
                if seen["service"]["queue"]:
                    break
        (start,) = seen["service"]["queue"]
        assert (start["chat"], start["tenant"], start["position"]) == ("second", "acme", 1)
        assert (await site.overview(OTHER))["service"]["waiting"] == 0
        await site.client.post("/api/sandboxes/first/stop", headers=OTHER)
        await waiting


async def test_many_who_follow_cost_one_look(site: Site) -> None:
    """And when the last one is gone, nobody looks any more."""
    async with asyncio.timeout(60):
        streams = [site.events(OPERATOR, "?tenant=*") for _ in range(20)]
        opened = [await stream.__aenter__() for stream in streams]
        for events in opened:
            await anext(events)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert names.count("overview") == 1
        for stream in streams:
            await stream.__aexit__(None, None, None)
        while "overview" in [task.get_name() for task in asyncio.all_tasks()]:
            await asyncio.sleep(0.05)


# ---- the table


def entry(number: int, *, tenant: str = "acme", state: State = State.STOPPED, user: str = "") -> Entry:
    chat = Chat(f"chat-{number}", tenant)
    seen = Overview(chat, chat.digest, f"name-{number}", state, "", 0, float(number), float(number * 2))
    return Entry(seen, chat, "bash_tool", user, SandboxUse(number % 100, number << 20, None, 1), number % 7)


def view(**more: Any) -> View:
    return View(more.pop("tenant", "*"), True, Identity("main", Role.OPERATOR), **more)


def test_five_thousand_sandboxes_are_filtered_sorted_and_paged_quickly() -> None:
    entries = [entry(number, user=f"user-{number % 100}@example.org") for number in range(5000)]
    for sort in SORTS:
        began = time.thread_time()
        page, names = page_of(entries, view(sort=sort, text="user-", descending=True))
        assert time.thread_time() - began < 1.0, sort
        assert (len(page["rows"]), len(names), page["matching"], page["total"]) == (100, 100, 5000, 5000)
    assert len(json.dumps(page)) < 60_000
    assert [row["chat"] for row in page_of(entries, view())[0]["rows"]][:3] == ["chat-0", "chat-1", "chat-2"]
    last = page_of(entries, view(offset=4990, limit=100))[0]
    assert [row["chat"] for row in last["rows"]] == [f"chat-{number}" for number in range(4990, 5000)]
    assert page_of(entries, view(offset=1_000_000))[0]["offset"] == 4900
    assert page_of([], view(offset=500))[0] == {"rows": [], "offset": 0, "matching": 0, "total": 0}


def test_a_filter_looks_at_chat_tenant_user_tool_and_state() -> None:
    entries = [entry(1, user="Ann@Example.org"), entry(2, tenant="zeta"), entry(3, state=State.FAILED)]
    for text, found in (("chat-1", [1]), ("ann@", [1]), ("zeta", [2]), ("failed", [3]), ("bash_tool", [1, 2, 3])):
        assert [each.chat.id for each in chosen(entries, view(text=text))] == [f"chat-{n}" for n in found]
    assert [each.chat.id for each in chosen(entries, view(state="failed"))] == ["chat-3"]


def test_hostile_names_are_one_short_line() -> None:
    hostile = "<img src=x onerror=alert(1)>\u202egnp.exe\x00\n" + "x" * 4096
    row = entry(1, user=hostile).row(time.time())
    assert len(row["user"]) <= 200
    assert "\n" not in row["user"]


def test_a_person_does_not_see_the_workspaces_of_others() -> None:
    person = Identity("acme", user="ann", person="ann")
    own = View("acme", False, person)
    assert own.shows(Chat("user:ann", "acme"))
    assert own.shows(Chat("team", "acme"))
    assert not own.shows(Chat("user:bob", "acme"))
    assert not own.shows(Chat("team", "other"))
