"""The power goes: no chat, no acknowledged file is lost, and no file is there by half.

DATA_DIR lies on a file system of its own, which is shut down without a flush of its journal.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from cubicle.sandbox.lost_found import LostFound
from tests.support.process import ACCEPT, ServiceProcess
from tests.survival.cut_disk import FORMATS, GIB, cut_disk

LONG = bool(os.environ.get("CUBICLE_LONG"))
pytestmark = [pytest.mark.oci, pytest.mark.real, pytest.mark.timeout(7200 if LONG else 900)]

# Seconds from the last use to the cut, round by round: seven in all, or 300.
DELAYS: dict[str, list[float]] = {
    "ext4": [0, 2, 15],
    "xfs": [0, 0.3],
    "xfs-quota": [0, 2],
}
MANY: dict[str, list[float]] = dict.fromkeys(DELAYS, [0, 0.3, 2, 15, 0] * 20)
UPLOADS = "/mnt/user-data/uploads"


@dataclass
class Kept:
    """What the service has acknowledged, by chat and path: the SHA-256."""

    files: dict[str, dict[str, str]] = field(default_factory=dict)
    restless: dict[str, list[str]] = field(default_factory=dict)
    """By chat: every version that was sent of one file, up to the one that may be under way."""
    acknowledged: dict[str, int] = field(default_factory=dict)

    def note(self, chat: str, path: str, content: bytes) -> None:
        self.files.setdefault(chat, {})[path] = hashlib.sha256(content).hexdigest()


async def upload(service: ServiceProcess, chat: str, name: str, content: bytes) -> None:
    answer = await service.client.put(f"/api/uploads/{chat}/{name}", content=content)
    assert answer.status_code == 201, answer.text


async def tool(service: ServiceProcess, chat: str, name: str, **arguments: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat}
    answer = await service.client.post("/mcp", content=json.dumps(body), headers=headers)
    assert answer.status_code == 200, answer.text
    assert '"isError":false' in answer.text.replace(" ", ""), answer.text


async def use(service: ServiceProcess, chat: str, kept: Kept, number: int) -> None:
    """A new chat, some files in it, one of them changed."""
    small, large = random.randbytes(1000), random.randbytes(3_000_000)
    await upload(service, chat, "small.bin", small)
    kept.note(chat, f"{UPLOADS}/small.bin", small)
    await upload(service, chat, f"folder/of/{number}/large.bin", large)
    kept.note(chat, f"{UPLOADS}/folder/of/{number}/large.bin", large)
    again = random.randbytes(2000)
    await upload(service, chat, "small.bin", again)
    kept.note(chat, f"{UPLOADS}/small.bin", again)
    await tool(service, chat, "create_file", path="/home/assistant/notes/a.txt", content=f"first {number}")
    await tool(service, chat, "str_replace", path="/home/assistant/notes/a.txt", old_str="first", new_str="second")
    kept.note(chat, "/home/assistant/notes/a.txt", f"second {number}".encode())


async def write_on(service: ServiceProcess, chat: str, kept: Kept) -> None:
    """Upload version after version of one file, until the service is gone."""
    versions = kept.restless.setdefault(chat, [])
    try:
        while True:
            content = random.randbytes(random.choice([100, 300_000]))
            versions.append(hashlib.sha256(content).hexdigest())
            await upload(service, chat, "restless.bin", content)
            kept.acknowledged[chat] = len(versions) - 1
    except (httpx.TransportError, AssertionError):
        return  # the disk answers with errors from the cut on


async def check(service: ServiceProcess, chat: str, kept: Kept) -> None:
    paths = [*kept.files.get(chat, {})]
    also = f"{UPLOADS}/restless.bin" if chat in kept.restless else ""
    quoted = " ".join(paths + [also] * bool(kept.acknowledged.get(chat, -1) >= 0))
    failed, said = await service.bash(chat, f"sha256sum {quoted}; ls -A {UPLOADS}")
    lines = said.splitlines()
    found = {line.split()[1]: line.split()[0] for line in lines if line.count(" ") >= 2}
    assert not failed, (chat, said)
    assert {path: found.get(path) for path in paths} == kept.files.get(chat, {}), chat
    assert not [line for line in lines if line.startswith(".cubicle-tmp-")], said
    if chat in kept.acknowledged:
        newest = kept.restless[chat].index(found[also])  # one that was sent, whole
        assert newest >= kept.acknowledged[chat]


async def verify(service: ServiceProcess, data: Path, kept: Kept, chats: list[str]) -> None:
    listed = (await service.client.get("/api/sandboxes")).json()["sandboxes"]
    assert {row["chat"] for row in listed} >= set(kept.files), "a chat is lost"
    assert LostFound(data).entries() == []
    for chat in chats:
        await check(service, chat, kept)


async def one_round(service: ServiceProcess, kept: Kept, number: int, delay: float) -> list[str]:
    """Use old chats and new ones, wait, and cut; the chats that were used. The service is killed."""
    old = random.sample([*kept.files], min(2, len(kept.files)))
    for chat in old:  # stopped and woken
        assert (await service.client.post(f"/api/sandboxes/{chat}/stop")).status_code == 200
        await service.bash(chat, "echo woken")
    new = [f"chat-{number}-{count}" for count in range(2)]
    await asyncio.gather(*(use(service, chat, kept, number) for chat in new))
    await use(service, old[0] if old else new[0], kept, number)
    if delay:
        await asyncio.sleep(delay)
    return [*old, *new]


@pytest.fixture
async def cuts(
    tmp_path: Path, image: str, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[ServiceProcess, object]]:
    size = (8 if LONG else 2) * GIB  # what is removed stays in the trash
    with cut_disk(tmp_path, request.param, size) as disk:
        usual = {"DRIVER": "oci", "SANDBOX_IMAGE": image, "POOL_SIZE": "1", "SANDBOX_MEMORY_MB": "256"}
        service = ServiceProcess(disk.data, **usual, SANDBOX_DISK_MB="100", SANDBOX_PIDS="128")
        try:
            yield service, disk
        finally:
            service.kill()
            await service.client.aclose()


@pytest.mark.parametrize("cuts", FORMATS, indirect=True)
async def test_nothing_acknowledged_is_lost(cuts, request: pytest.FixtureRequest) -> None:
    service, disk = cuts
    kind = request.node.callspec.params["cuts"]
    kept, used = Kept(), []
    service.mounts = disk.mounts
    await service.start()
    for number, delay in enumerate((MANY if LONG else DELAYS)[kind]):
        await verify(service, disk.seen, kept, used)
        print(f"{kind}: round {number + 1}, {len(kept.files)} chats kept")
        used = await one_round(service, kept, number, delay)
        writing = asyncio.create_task(write_on(service, used[-1], kept))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(disk.take_power)
        await asyncio.to_thread(service.kill)
        await writing
        await asyncio.to_thread(disk.restore)
        service.mounts = disk.mounts
        await service.start()
        if LONG and len(kept.files) > 20:
            await forget(service, kept, [chat for chat in kept.files if chat not in used][:2])
    await verify(service, disk.seen, kept, [*kept.files])


async def append(service: ServiceProcess, chat: str, name: str) -> str | None:
    """A call with a key, whose command says that it ran; None if the service was gone before it answered."""
    arguments = {"command": f"echo {name} >> ~/ran; sync ~/ran; echo did {name}", "description": "append"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bash_tool", "arguments": arguments}}
    headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat, "Idempotency-Key": name}
    try:
        answer = await service.client.post("/mcp", content=json.dumps(body), headers=headers)
    except httpx.TransportError:
        return None
    assert answer.status_code == 200, answer.text
    return answer.text


async def call_on(
    service: ServiceProcess, chat: str, number: int, answered: dict[str, str | None], cut: asyncio.Event
) -> None:
    """Call after call, until the power goes."""
    count = 0
    while not cut.is_set():
        name, count = f"{chat}-{number}-{count}", count + 1
        answered[name] = None
        answer = await append(service, chat, name)
        if not cut.is_set():
            answered[name] = answer


@pytest.mark.parametrize("cuts", ["ext4", pytest.param("xfs", marks=pytest.mark.long)], indirect=True)
async def test_no_call_with_a_key_is_done_twice(cuts, tmp_path: Path) -> None:
    """After the cut each call is repeated. One that was answered has the same answer; of the last one of each chat it
    may be said that it was done in part. The host has another boot, as the service sees it; the sandbox's guest does
    not, as it sees the kernel's own: that alone would have it done again."""
    service, disk = cuts
    answered: dict[str, str | None] = {}
    for number in range(3):
        boot = tmp_path / "boot"
        boot.write_text(f"{number:08d}-0000-0000-0000-000000000000\n")
        hide = ["mount", "--bind", str(boot), "/proc/sys/kernel/random/boot_id"]
        await asyncio.to_thread(subprocess.run, [*disk.enter, *hide], check=True)
        service.mounts = disk.mounts
        await service.start()
        for chat in ("a", "b"):
            await repeat(service, chat, answered)
        answered, cut = {}, asyncio.Event()
        calling = [asyncio.create_task(call_on(service, chat, number, answered, cut)) for chat in ("a", "b")]
        async with asyncio.timeout(60):
            while sum(answer is not None for answer in answered.values()) < 20:
                await asyncio.sleep(0.01)
        cut.set()
        await asyncio.to_thread(disk.take_power)
        await asyncio.to_thread(service.kill)
        await asyncio.gather(*calling)
        await asyncio.to_thread(disk.restore)


async def repeat(service: ServiceProcess, chat: str, answered: dict[str, str | None]) -> None:
    unsure = []
    for name, before in answered.items():
        if name.startswith(f"{chat}-"):
            again = await append(service, chat, name)
            assert again is not None
            assert before is None or answer_in(again) == answer_in(before), name
            if f"did {name}" not in again:
                assert "may have been done in part" in again, again
                unsure.append(name)
    _, said = await service.bash(chat, "touch ~/ran; cat ~/ran")
    ran = said.split()
    assert len(ran) == len(set(ran)), "a command ran twice"
    assert {name for name in answered if name.startswith(f"{chat}-")} - set(ran) <= set(unsure)
    assert len(unsure) <= 1, unsure


def answer_in(stream: str) -> str:
    """The answer itself: what was streamed before it is not told again."""
    return [line for line in stream.splitlines() if line.startswith("data:")][-1]


async def forget(service: ServiceProcess, kept: Kept, chats: list[str]) -> None:
    for chat in chats:
        assert (await service.client.delete(f"/api/sandboxes/{chat}")).status_code == 204
        for notes in (kept.files, kept.restless, kept.acknowledged):
            notes.pop(chat, None)
