"""Webhooks of a whole service: which events it tells of, that a kill -9 loses none, and what an operator sees."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from cubicle import settings
from cubicle.app import running
from cubicle.cli import main
from cubicle.core.api_keys import ApiKey
from cubicle.drivers.factory import make_driver
from cubicle.isolation.runner import Finding, ProbeVerdict, Report, Strength
from cubicle.isolation.startup_check import StartupCheck
from cubicle.machine.errors import Unusable
from cubicle.settings import BadSettings
from cubicle.startup import check_isolation
from cubicle.webhooks.sources import EventSources, network_of
from cubicle.webhooks.webhooks import Webhooks
from tests.support.emptying import empty
from tests.support.process import ServiceProcess
from tests.support.service import ACCEPT, messages, serve
from tests.webhooks.receiver import OK, Message, TestReceiver, answering, hanging, receiving, written

KEYS = {"acme-key": "acme", "other-key": "other"}
OPERATOR = {"Authorization": "Bearer operator-key"}


class Site:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def call(self, command: str, *, key: str = "acme-key", chat: str = "a", **headers: str) -> dict[str, Any]:
        sent = {"Accept": ACCEPT, "X-Chat-Id": chat, "Authorization": f"Bearer {key}", **headers}
        params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        result: dict[str, Any] = messages(await self.client.post("/mcp", json=body, headers=sent))[-1]["result"]
        return result


@asynccontextmanager
async def site_of(folder: Path, file: Path | None, **chosen: Any) -> AsyncIterator[Site]:
    (folder / "keys.json").write_text(json.dumps(KEYS))
    found = settings.load(
        driver="memory",
        data_dir=folder / "data",
        pool_size=0,
        mcp_api_key="operator-key",
        api_keys_file=folder / "keys.json",
        webhooks_file=file,
        shed_memory_mb=0,
        **chosen,
    )
    async with (
        running(found) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield Site(client)
    await empty(make_driver(found))


async def of_type(receiver: TestReceiver, kind: str, count: int = 1) -> list[Message]:
    async with asyncio.timeout(20):
        while len(found := [message for message in receiver.messages if message.type == kind]) < count:
            await receiver.wait_for(len(receiver.messages) + 1)
    return found


async def test_the_life_of_a_sandbox_is_told(tmp_path: Path) -> None:
    async with receiving() as receiver:
        file = written(tmp_path / "webhooks.toml", {"name": "ops", "url": receiver.url})
        async with site_of(tmp_path, file) as site:
            key = {"Authorization": "Bearer acme-key"}
            await site.call("true")
            (started,) = await of_type(receiver, "sandbox.started")
            assert started.data == {"tenant": "acme", "chat": "a", "new": True}
            started.verify()
            assert (await site.client.post("/api/sandboxes/a/stop", headers=key)).status_code == 200
            (stopped,) = await of_type(receiver, "sandbox.stopped")
            assert stopped.data["reason"] == "The operator stopped this sandbox."
            await site.call("true")
            *_, again = await of_type(receiver, "sandbox.started", 2)
            assert again.data["new"] is False
            assert (await site.client.delete("/api/sandboxes/a", headers=key)).status_code == 204
            (removed,) = await of_type(receiver, "sandbox.removed")
            assert removed.data == {"tenant": "acme", "chat": "a", "reason": "removed by hand"}
    assert not [message for message in receiver.messages if message.type == "sandbox.failed"]


async def test_a_sandbox_that_dies_is_told(tmp_path: Path) -> None:
    async with receiving() as receiver:
        file = written(tmp_path / "webhooks.toml", {"name": "ops", "url": receiver.url, "events": ["sandbox.*"]})
        async with site_of(tmp_path, file) as site:
            await site.call("true")
            await of_type(receiver, "sandbox.started")
            (holder,) = [int(path.read_text().split()[0]) for path in tmp_path.glob("data/memory/*/pid")]
            os.kill(int(Path(f"/proc/{holder}/task/{holder}/children").read_text()), signal.SIGKILL)
            (ended,) = await of_type(receiver, "sandbox.stopped")
            assert ended.data["reason"] == "It ended, or another program stopped it."
            await site.call("true")
            await of_type(receiver, "sandbox.started", 2)


async def test_a_quota_is_told_once_and_only_to_whom_it_concerns(tmp_path: Path) -> None:
    async with receiving() as receiver, receiving() as rival:
        rows: list[dict[str, Any]] = [
            {"name": "ops", "url": receiver.url, "events": ["quota.reached"]},
            {"name": "rival", "url": rival.url, "tenants": ["other"]},
        ]
        file = written(tmp_path / "webhooks.toml", *rows)
        async with site_of(
            tmp_path, file, tenant_calls_per_minute=2, user_max_sandboxes=1, start_queue_seconds=0
        ) as site:
            for _ in range(6):
                await site.call("true")
            (told,) = await of_type(receiver, "quota.reached")
            assert told.data == {"tenant": "acme", "limit": "calls_per_minute", "scope": "tenant"}
            user = {"X-User-Email": "ann@other.example"}
            await site.call("true", key="other-key", chat="one", **user)
            await site.call("true", key="other-key", chat="two", **user)
            told = (await of_type(receiver, "quota.reached", 2))[1]
            assert told.data == {
                "tenant": "other", "limit": "sandboxes", "scope": "user", "user": "ann@other.example",
            }  # fmt: skip
            await of_type(rival, "quota.reached")
    assert {message.data["tenant"] for message in rival.messages} == {"other"}


async def test_a_key_from_a_new_network_is_told_once_also_after_a_restart(tmp_path: Path) -> None:
    async with receiving() as receiver:
        file = written(tmp_path / "webhooks.toml", {"name": "ops", "url": receiver.url, "events": ["key.*"]})
        for _ in range(2):
            async with site_of(tmp_path, file) as site:
                for address in ("192.0.2.1", "192.0.2.77", "198.51.100.1", "2001:db8:1::1", "2001:db8:1:2::9"):
                    sent = {"Authorization": "Bearer acme-key", "X-Forwarded-For": address}
                    answer = await site.client.get("/api/sandboxes", headers=sent)
                    assert answer.status_code == 200
                await of_type(receiver, "key.new_network", 3)
    told = [(message.data["network"], message.data["first"]) for message in receiver.messages]
    assert told == [("192.0.2.0/24", True), ("198.51.100.0/24", False), ("2001:db8:1::/48", False)]
    assert all("acme-key" not in message.body.decode() for message in receiver.messages)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.9", "192.0.2.0/24"),
        ("::ffff:192.0.2.9", "192.0.2.0/24"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1::/48"),
        ("", "unknown"),
        ("not an address", "unknown"),
    ],
)
def test_networks(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_an_isolation_check_that_fails_is_told_before_the_service_gives_up(tmp_path: Path) -> None:
    async def prove() -> Report:
        return Report(Strength.NAMESPACES, (Finding("mounts", "mount", ProbeVerdict.MISSING, "DONE"),))

    async with receiving() as receiver:
        file = written(tmp_path / "webhooks.toml", {"name": "ops", "url": receiver.url})
        for required, serves in (("enforce", False), ("warn", True)):
            found = settings.load(
                driver="oci", data_dir=tmp_path, image_dir=tmp_path / required, require_walls=required
            )
            with nullcontext() if serves else pytest.raises(Unusable):
                async with Webhooks(tmp_path / "queue", file) as webhooks:
                    await check_isolation(StartupCheck(found, prove), EventSources(webhooks))
    told = [message.data for message in receiver.messages]
    assert told == [
        {"reason": "These layers of the sandboxes' isolation do not hold: mounts.", "serves": serves}
        for serves in (False, True)
    ]


async def test_events_survive_a_kill_of_the_service(tmp_path: Path) -> None:
    """What a request was answered for is told, however often the service is killed between."""
    async with receiving(hanging) as receiver:
        file = written(tmp_path / "webhooks.toml", {"name": "ops", "url": receiver.url, "events": ["sandbox.*"]})
        chosen = {"DRIVER": "memory", "POOL_SIZE": "0", "WEBHOOKS_FILE": str(file)}
        after = settings.load(data_dir=tmp_path / "data", driver="memory")
        service = ServiceProcess(tmp_path / "data", **chosen)
        async with service.running(after):
            chats = [f"c{number}" for number in range(4)]
            expected = [(kind, chat) for kind in ("sandbox.started", "sandbox.removed") for chat in chats]
            for chat in chats:
                failed, said = await service.bash(chat, "true")
                assert not failed, said
            service.kill()
            await service.start()
            for chat in chats:
                assert (await service.client.delete(f"/api/sandboxes/{chat}")).status_code == 204
            service.kill()
            receiver.behave = OK
            before = len(receiver.messages)
            await service.start()
            async with asyncio.timeout(30):
                while not set(expected) <= {(m.type, m.data["chat"]) for m in receiver.messages[before:]}:
                    await receiver.wait_for(len(receiver.messages) + 1)
        ids: dict[tuple[str, str], set[str]] = {}
        for message in receiver.messages:
            message.verify()
            ids.setdefault((message.type, message.data["chat"]), set()).add(message.id)
        assert all(len(ids[one]) == 1 for one in expected)
        assert len(receiver.messages) > len(ids), "nothing came twice: the test shows less than it should"


async def test_an_operator_sees_dead_letters_and_sends_them_again(tmp_path: Path) -> None:
    async with receiving(answering(410)) as receiver:
        file = written(tmp_path / "webhooks.toml", {"name": "ops", "url": receiver.url, "events": ["sandbox.started"]})
        async with site_of(tmp_path, file) as site:
            url = "/api/admin/webhooks"
            await site.call("true")
            async with asyncio.timeout(20):
                while not (shown := (await site.client.get(url, headers=OPERATOR)).json())["dead"]:
                    await asyncio.sleep(0.02)
            (row,) = shown["receivers"]
            assert row == {
                "name": "ops",
                "host": receiver.url.partition("/hooks")[0],
                "events": ["sandbox.started"],
                "tenants": [],
                "waiting": 0,
                "dead": 1,
                "failing": "It answered 410.",
            }
            (letter,) = shown["dead"]
            assert (letter["type"], letter["tenant"], letter["receiver"]) == ("sandbox.started", "acme", "ops")
            assert "hidden-in-the-url" not in json.dumps(shown)
            for key in ("acme-key", "wrong-key"):
                refused = {"Authorization": f"Bearer {key}"}
                assert (await site.client.get(url, headers=refused)).status_code in (401, 403)
                assert (await site.client.post(f"{url}/retry", headers=refused)).status_code in (401, 403)
            assert (await site.client.post(f"{url}/retry?id=msg_none", headers=OPERATOR)).status_code == 404
            assert (await site.client.post(f"{url}/retry?receiver=none", headers=OPERATOR)).status_code == 404
            receiver.behave = OK
            answer = await site.client.post(f"{url}/retry?id={letter['id']}", headers=OPERATOR)
            assert answer.json() == {"retried": 1}
            await receiver.wait_for(2)
            async with asyncio.timeout(20):
                while (await site.client.get(url, headers=OPERATOR)).json()["receivers"][0]["dead"]:
                    await asyncio.sleep(0.02)
    assert {message.id for message in receiver.messages} == {letter["id"]}


async def test_the_command_line_lists_and_retries_beside_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WEBHOOKS_FILE", str(tmp_path / "webhooks.toml"))

    async def cubicle(*arguments: str) -> tuple[int, str]:
        found = await asyncio.to_thread(CliRunner().invoke, main, ["webhooks", *arguments])
        return found.exit_code, found.output

    assert await cubicle("list") == (
        1, "Error: There is no queue of webhooks yet: a service with WEBHOOKS_FILE makes it.\n",
    )  # fmt: skip
    async with receiving(answering(410)) as receiver:
        file = written(tmp_path / "webhooks.toml", {"name": "ops", "url": receiver.url, "events": ["sandbox.started"]})
        async with site_of(tmp_path, file) as site:
            await site.call("true")
            await receiver.wait_for()
            async with asyncio.timeout(20):
                while "It answered 410." not in (listed := (await cubicle("list"))[1]):
                    await asyncio.sleep(0.05)
            (message,) = receiver.messages
            assert message.id in listed
            assert "hidden-in-the-url" not in listed
            receiver.behave = OK
            assert (await cubicle("retry"))[0] == 1
            assert (await cubicle("retry", "msg_none"))[0] == 1
            code, said = await cubicle("retry", "--all")
            assert (code, said) == (0, "1 message will be sent now, or as soon as the service runs.\n")
            await receiver.wait_for(2)
    code, made = await cubicle("secret")
    assert code == 0
    written(tmp_path / "webhooks.toml", {"name": "ops", "url": "https://example.org/", "secret": made.strip()})
    assert (await cubicle("list"))[0] == 0


async def test_a_bad_file_stops_the_start_and_no_file_costs_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "webhooks.toml"
    bad.write_text("nonsense")
    with pytest.raises(BadSettings, match="WEBHOOKS_FILE"):
        async with site_of(tmp_path, bad):
            pass
    async with site_of(tmp_path, None) as site:
        await site.call("true")
        shown = await site.client.get("/api/admin/webhooks", headers=OPERATOR)
        assert shown.json() == {"receivers": [], "dead": [], "dropped": 0}
        assert (await site.client.post("/api/admin/webhooks/retry", headers=OPERATOR)).status_code == 404
        EventSources(Webhooks(tmp_path / "none", None)).key_used(ApiKey("x", "acme"), "192.0.2.1")
    assert not (tmp_path / "data" / "webhooks").exists()
    assert not (tmp_path / "none").exists()
