"""A worker that ends, by a kill or in order: the others go on with its chats."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from cubicle.core.chat import Chat
from cubicle.settings import Settings
from tests.support.members import Worker, answer_of, workers
from tests.support.process import ServiceProcess

_CHATS = 12 if os.environ.get("CUBICLE_LONG") else 6
_LIMIT = 20.0
"""Seconds in which the chats of a worker that was killed come back."""


async def call(worker: Worker, chat: str, command: str, key: str) -> httpx.Response:
    params = {"name": "bash_tool", "arguments": {"command": command, "description": "test", "timeout": 300}}
    return await worker.ask(chat, "tools/call", params, **{"Idempotency-Key": key})


async def retried(worker: Worker, chat: str, command: str, key: str) -> str:
    """As a client does that tries again when it was told to, or when it was cut off."""
    ends = time.monotonic() + 60
    while True:
        try:
            answer = await call(worker, chat, command, key)
            if answer.status_code != 503:
                return str(answer_of(answer)["result"]["content"][0]["text"])
        except httpx.TransportError:
            pass
        assert time.monotonic() < ends
        await asyncio.sleep(0.1)


async def both_ways(owner: Worker, other: Worker, count: int) -> list[tuple[Worker, str]]:
    """Chats of one worker, asked for by either."""
    chats = [f"chat-{number}" for number in range(count)]
    await asyncio.gather(*(owner.bash(chat, f"echo kept-{chat} > ~/kept") for chat in chats))
    return [((owner, other)[number % 2], chat) for number, chat in enumerate(chats)]


async def test_the_others_go_on_with_the_chats_of_a_killed_worker(tmp_path: Path) -> None:
    """Commands that ran go on, none is run twice by the service, and no file is lost."""
    async with workers(tmp_path, RESUME_SECONDS="600") as (killed, other):
        command = "echo x >> ~/runs; touch ~/begun; until [ -e ~/go ]; do sleep 0.2; done; echo over"
        asked = await both_ways(killed, other, _CHATS)
        keys = {chat: uuid.uuid4().hex for _, chat in asked}
        running = [asyncio.create_task(call(worker, chat, command, keys[chat])) for worker, chat in asked]
        for _, chat in asked:
            await other.bash(chat, "until [ -e ~/begun ]; do sleep 0.1; done")
        await killed.end(signal.SIGKILL)
        began = time.monotonic()
        for result in await asyncio.gather(*running, return_exceptions=True):
            told = isinstance(result, httpx.Response) and result.status_code == 503 and result.headers["retry-after"]
            assert told or isinstance(result, httpx.TransportError)
        for _, chat in asked:
            assert await retried(other, chat, "cat ~/kept", uuid.uuid4().hex) == f"kept-{chat}\n"
            assert await other.bash(chat, "wc -l < ~/runs; ls ~/go 2>/dev/null || true") == "1\n"  # it still runs
        assert time.monotonic() - began < _LIMIT
        again = [asyncio.create_task(retried(other, chat, command, keys[chat])) for _, chat in asked]
        for _, chat in asked:
            await other.bash(chat, "touch ~/go")
        assert set(await asyncio.gather(*again)) == {"over\n"}
        for _, chat in asked:
            assert await other.bash(chat, "wc -l < ~/runs") == "1\n"


async def test_chats_that_nobody_asks_for_are_taken_over_too(tmp_path: Path) -> None:
    async with workers(tmp_path, 3) as (killed, *others):
        await both_ways(killed, others[0], 9)
        await killed.end(signal.SIGKILL)
        async with asyncio.timeout(_LIMIT):
            while sum(line["event"] == "took over a chat" for each in others for line in each.events()) < 9:
                await asyncio.sleep(0.1)
        by = [sum(line["event"] == "took over a chat" for line in each.events()) for each in others]
        assert sum(by) == 9
        async with asyncio.timeout(_LIMIT):  # nothing is left of it
            while list((tmp_path / "data" / "members").glob("1-*")):
                await asyncio.sleep(0.1)
        for each in others:
            assert (await each.client.get("/files/chat-3/")).status_code == 200  # it is up, and connected to


async def test_a_killed_worker_comes_back_without_its_chats(tmp_path: Path) -> None:
    async with workers(tmp_path) as (killed, other):
        await both_ways(killed, other, 4)
        await killed.end(signal.SIGKILL)
        assert await retried(other, "chat-1", "cat ~/kept", uuid.uuid4().hex) == "kept-chat-1\n"
        await killed.start()
        for number in range(4):
            assert await retried(killed, f"chat-{number}", "cat ~/kept", uuid.uuid4().hex) == f"kept-chat-{number}\n"
        assert await killed.bash("new", "echo $((6*7))") == "42\n"


async def test_a_worker_that_ends_in_order_hands_its_chats_over(tmp_path: Path) -> None:
    """Callers who try again on 503 notice nothing: those of idle chats, and those whose command runs on."""
    async with workers(tmp_path, RESUME_SECONDS="600", DRAIN_SECONDS="20") as (ending, other):
        asked = await both_ways(ending, other, 6)
        go = "/mnt/user-data/uploads/go"
        command = f"echo x >> ~/runs; touch ~/begun; until [ -e {go} ]; do sleep 0.2; done; echo over"
        key = uuid.uuid4().hex
        running = asyncio.create_task(call(ending, "chat-0", command, key))
        await other.bash("chat-0", "until [ -e ~/begun ]; do sleep 0.1; done")
        end = asyncio.create_task(ending.end(signal.SIGTERM))
        for _, chat in asked[1:]:
            assert await retried(other, chat, "cat ~/kept", uuid.uuid4().hex) == f"kept-{chat}\n"
        assert not end.done()  # it waits for the call that runs
        assert (await other.client.put("/api/uploads/chat-0/go", content=b"now")).status_code == 201
        await end
        assert answer_of(await running)["result"]["content"][0]["text"] == "over\n"
        assert await retried(other, "chat-0", "cat ~/kept; wc -l < ~/runs", uuid.uuid4().hex) == "kept-chat-0\n1\n"


def slots_of(folder: Path, chats: Sequence[str]) -> set[str]:
    """Which workers own these chats, by their numbers."""
    with contextlib.closing(sqlite3.connect(folder / "data/members/owners.sqlite3")) as table:
        owners = dict(table.execute("SELECT digest, holder FROM owners").fetchall())
    return {owners.get(Chat(chat).digest, "").partition("-")[0] for chat in chats}


async def test_what_runs_in_a_sandbox_is_taken_over_when_its_worker_ends(tmp_path: Path) -> None:
    """Nobody asks for these chats: another worker connects to them all the same, for their network and their end. One has
    a program in the background, and the command of the other outlives the drain."""
    async with workers(tmp_path, DRAIN_SECONDS="1") as (ending, other):
        await ending.bash("idle", "setsid sleep 3174 </dev/null >/dev/null 2>&1 &")
        running = asyncio.create_task(call(ending, "long", "touch ~/begun; sleep 3173", uuid.uuid4().hex))
        await other.bash("long", "until [ -e ~/begun ]; do sleep 0.1; done")
        await ending.end(signal.SIGTERM)
        await asyncio.wait([running])
        async with asyncio.timeout(_LIMIT):
            while slots_of(tmp_path, ("idle", "long")) != {"2"}:
                await asyncio.sleep(0.1)
        for chat, command in (("idle", "sleep 3174"), ("long", "sleep 3173")):
            assert (await other.client.get(f"/files/{chat}/")).status_code == 200
            assert await other.bash(chat, f"pgrep -cfx '{command}'") == "1\n"


async def test_the_journal_goes_on_where_it_was(tmp_path: Path) -> None:
    async with workers(tmp_path) as (killed, other):
        await killed.bash("noted", "echo first")
        await killed.end(signal.SIGKILL)
        await retried(other, "noted", "echo second", uuid.uuid4().hex)
        replay = (await other.client.get("/api/chats/noted/replay")).text
        assert "first" in replay
        assert "second" in replay
        assert "missing" not in other.log()


async def connected_to(service: ServiceProcess, count: int) -> dict[int, httpx.AsyncClient]:
    """A client of each worker of a service: connections are divided by the kernel."""
    found: dict[int, httpx.AsyncClient] = {}
    async with asyncio.timeout(60):
        while len(found) < count:
            client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=60, trust_env=False)
            try:
                await client.get("/health")
            except httpx.TransportError:
                await client.aclose()
                continue
            worker = await asyncio.to_thread(_worker_of, client, service.pid)
            if worker in found or not worker:
                await client.aclose()
                await asyncio.sleep(0.02)
            else:
                found[worker] = client
    return found


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _worker_of(client: httpx.AsyncClient, parent: int) -> int:
    """The process that has the other end of the client's connection."""
    (connection,) = client._transport._pool.connections  # type: ignore[attr-defined]
    stream = connection._connection._network_stream
    _, own = stream.get_extra_info("client_addr")[:2]
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {line.split()[9] for line in lines if line.split()[2].endswith(f":{own:04X}")}
    for worker in _children(parent):
        for fd in Path(f"/proc/{worker}/fd").iterdir():
            try:
                if os.readlink(fd).removeprefix("socket:[").removesuffix("]") in inodes:
                    return worker
            except OSError:
                continue
    return 0


_TWO = {"DRIVER": "memory", "WORKERS": "2", "POOL_SIZE": "2", "EGRESS": "none", "DRAIN_SECONDS": "5"}


@pytest.fixture
def service(tmp_path: Path) -> ServiceProcess:
    data = tmp_path / "data"
    data.mkdir()
    return ServiceProcess(data, **_TWO)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(_env_file=None, data_dir=tmp_path / "data", driver="memory")  # type: ignore[call-arg]


async def test_the_parent_starts_a_dead_worker_again_and_ends_all_of_them(
    service: ServiceProcess, settings: Settings
) -> None:
    async with service.running(settings):
        unused, clients = service.client, await connected_to(service, 2)
        before = set(clients)
        (killed, first), (left, second) = clients.items()
        service.client = first
        await service.bash("one", "echo kept > ~/kept")
        os.kill(killed, signal.SIGKILL)
        while Path(f"/proc/{killed}").exists():
            await asyncio.sleep(0.02)
        service.client = second
        assert await service.bash("one", "cat ~/kept") == (False, "kept\n")
        async with asyncio.timeout(60):
            while len(set(_children(service.pid)) - before) < 1 or len(_children(service.pid)) < 2:
                await asyncio.sleep(0.1)
        anew = await connected_to(service, 2)
        assert set(anew) - before
        for client in anew.values():
            service.client = client
            assert await service.bash("one", "cat ~/kept") == (False, "kept\n")
        for client in [unused, *clients.values(), *anew.values()]:
            await client.aclose()
        children = _children(service.pid)
        service.stop()
        assert not [child for child in children if Path(f"/proc/{child}").exists()]
        assert left in before


async def test_the_others_take_over_from_a_worker_that_stands_still_and_all_end_with_their_parent(
    tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "data").mkdir()
    service = ServiceProcess(tmp_path / "data", **_TWO, WORKER_HANG_SECONDS="5")
    async with service.running(settings):
        unused, clients = service.client, await connected_to(service, 2)
        first, second = clients.values()
        service.client = first
        await service.bash("one", "echo kept > ~/kept")
        hung = await asyncio.to_thread(_worker_of, first, service.pid)  # a connection that was quiet may be another now
        os.kill(hung, signal.SIGSTOP)
        service.client = second
        async with asyncio.timeout(100):
            while True:
                with contextlib.suppress(httpx.TransportError, AssertionError):
                    if await service.bash("one", "cat ~/kept") == (False, "kept\n"):
                        break
                await asyncio.sleep(0.1)
        async with asyncio.timeout(60):  # its parent has killed it, says so, and starts another
            while Path(f"/proc/{hung}").exists() or "a worker hangs" not in service.log():
                await asyncio.sleep(0.1)
            while len(_children(service.pid)) < 2:
                await asyncio.sleep(0.1)
        for client in [unused, *clients.values()]:
            await client.aclose()
        await end_with_their_parent(service)


async def end_with_their_parent(service: ServiceProcess) -> None:
    for client in (await connected_to(service, 2)).values():  # both serve
        await client.aclose()
    children = _children(service.pid)
    assert len(children) == 2
    service.kill()
    async with asyncio.timeout(60):
        while [child for child in children if Path(f"/proc/{child}").exists()]:
            await asyncio.sleep(0.1)
