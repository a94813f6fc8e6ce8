"""Two replicas on a cluster: Leases say who owns a chat, and the guests serve the owner alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cubicle.app import running
from cubicle.core.chat import Chat
from cubicle.drivers.factory import cluster_finder, make_driver
from cubicle.drivers.kubernetes.members import LeaseRecords
from cubicle.http_api.member_side import PublicSide
from cubicle.members.hop_keys import HopKeys
from cubicle.membership import Membership
from cubicle.settings import Settings
from tests.support import small_cluster
from tests.support.emptying import empty
from tests.support.members import answer_of
from tests.support.process import ACCEPT
from tests.support.service import serve

_DEAD, _RENEW = 3.0, 0.3
CHAT = Chat("kept")


@dataclass
class Replica:
    membership: Membership
    records: LeaseRecords
    client: httpx.AsyncClient

    async def ask(self, command: str) -> httpx.Response:
        arguments = {"command": command, "description": "test"}
        params = {"name": "bash_tool", "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": CHAT.id}
        return await self.client.post("/mcp", content=body, headers=headers)

    async def bash(self, command: str) -> str:
        answer = answer_of(await self.ask(command))
        assert not answer["result"]["isError"], answer
        return str(answer["result"]["content"][0]["text"])


@asynccontextmanager
async def replica(settings: Settings, slot: int, secret: Path) -> AsyncIterator[Replica]:
    finder, instance = cluster_finder(settings), settings.kubernetes_instance
    records = LeaseRecords(
        finder, instance, slot=slot, address="127.0.0.1", port=0, dead_seconds=_DEAD, renew_seconds=_RENEW
    )
    membership = Membership(records, HopKeys(file=secret), slot=slot, slots=2)
    async with (
        membership.open() as inner,
        running(settings, membership) as app,
        serve(app.state.member_side, inner, proxy_headers=False),
        serve(PublicSide(app)) as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
    ):
        yield Replica(membership, records, client)


@pytest.fixture
async def settings(tmp_path: Path) -> AsyncIterator[Settings]:
    cluster = await asyncio.to_thread(small_cluster.Running, tmp_path)
    config: dict[str, Any] = {
        "current-context": "small",
        "contexts": [{"name": "small", "context": {"cluster": "small", "user": "small", "namespace": "test"}}],
        "clusters": [{"name": "small", "cluster": {"server": cluster.server}}],
        "users": [{"name": "small", "user": {"token": "t"}}],
    }
    await asyncio.to_thread((tmp_path / "config").write_text, yaml.safe_dump(config))
    found = Settings(
        _env_file=None,  # type: ignore[call-arg]
        driver="kubernetes",
        kubeconfig=tmp_path / "config",
        kubernetes_image="host",
        kubernetes_instance="small",
        data_dir=tmp_path / "data",
        image_dir=tmp_path / "images",
        pool_size=0,
        egress="none",
        min_free_mb=0,
    )
    yield found
    await empty(make_driver(found))


@pytest.mark.timeout(600)
async def test_a_replica_that_is_silent_loses_its_chats_and_finds_out(settings: Settings, secret: Path) -> None:
    async with replica(settings, 1, secret) as one, replica(settings, 2, secret) as two:
        await one.bash("echo kept > ~/file; (sleep 3165 &) >/dev/null 2>&1")
        assert await two.bash("cat ~/file") == "kept\n"
        assert one.membership.owners.owns(CHAT.digest)
        keeping, one.records._renew_seconds = one.records._keeping, 3600.0
        assert keeping is not None
        keeping.cancel()  # it hangs, as far as others can tell
        async with asyncio.timeout(120):
            while not two.membership.owners.owns(CHAT.digest):
                await asyncio.sleep(0.05)
        assert await two.bash("cat ~/file; pgrep -cfx 'sleep 3165'") == "kept\n1\n"
        assert one.membership.owners.owns(CHAT.digest)  # it believes so: the guest and the record say otherwise
        answer = await one.ask("touch ~/twice")
        assert answer.status_code == 503 or answer_of(answer)["result"]["isError"]
        assert await two.bash("ls ~/twice 2>/dev/null; cat ~/file") == "kept\n"
        await one.records._renew()
        async with asyncio.timeout(60):
            while one.membership.owners.owns(CHAT.digest):
                await asyncio.sleep(0.05)
        assert await one.bash("cat ~/file") == "kept\n"
        assert two.membership.owners.owns(CHAT.digest)
        assert (await two.records.owner(CHAT.digest)) is not None


@asynccontextmanager
async def odd_member(settings: Settings, answer: bytes) -> AsyncIterator[LeaseRecords]:
    """A member that owns the chat, takes connections, and sends these bytes again and again, or nothing."""
    finder, instance = cluster_finder(settings), settings.kubernetes_instance
    records = LeaseRecords(
        finder, instance, slot=2, address="127.0.0.1", port=0, dead_seconds=_DEAD, renew_seconds=_RENEW
    )

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while answer:
                writer.write(answer)
                await writer.drain()
            while await reader.read(65536):
                pass
        writer.close()

    async with await asyncio.start_server(talk, sock=await records.open()):
        assert (await records.take(CHAT.digest, None)).holder == records.name
        try:
            yield records
        finally:
            await records.close()


@pytest.fixture
async def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    await asyncio.to_thread(file.write_text, "0123456789abcdef0123456789abcdef\n")
    return file


@pytest.mark.timeout(600)
async def test_a_request_at_a_member_that_hangs_is_given_up_when_it_counts_as_dead(
    settings: Settings, secret: Path
) -> None:
    async with replica(settings, 1, secret) as one, odd_member(settings, b"") as hung:
        waiting = [asyncio.create_task(one.ask("touch ~/done")) for _ in range(3)]
        reading = asyncio.create_task(one.client.get(f"/files/{CHAT.id}/"))
        done, _ = await asyncio.wait([*waiting, reading], timeout=_DEAD * 2)
        assert not done  # it renews its Lease, so a long command may run there
        assert hung._keeping is not None
        hung._keeping.cancel()
        async with asyncio.timeout(60):
            told = await asyncio.gather(*waiting)
        assert {(answer.status_code, answer.headers["retry-after"]) for answer in told} == {(503, "1")}
        assert (await reading).status_code in (200, 404, 503)  # what only reads may be asked for again
        assert await one.bash("ls ~/done 2>/dev/null || echo none") == "none\n"
        assert one.membership.owners.owns(CHAT.digest)


@pytest.mark.timeout(600)
async def test_a_member_that_answers_without_an_end_is_not_listened_to(settings: Settings, secret: Path) -> None:
    async with replica(settings, 1, secret) as one, odd_member(settings, b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 9999):
        async with asyncio.timeout(60):
            assert (await one.ask("true")).status_code == 503
            assert (await one.client.get("/health")).status_code == 200
