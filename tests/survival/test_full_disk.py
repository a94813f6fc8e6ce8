"""The disk of DATA_DIR gets full while chats write and wake: nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cubicle import settings
from tests.support.process import ServiceProcess, command

pytestmark = [pytest.mark.anyio, pytest.mark.oci]

HOST_MB = 500
CHATS = ("writes", "writes-too", "sleeps", "goes")
HEALED_SECONDS = 90
FORMATS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}


@pytest.fixture(params=["ext4", pytest.param("xfs", marks=pytest.mark.long)])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    image, mounted = tmp_path / "host.img", tmp_path / "host"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(HOST_MB * 1024**2)
    subprocess.run([*FORMATS[request.param], str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=True)
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


class Service(ServiceProcess):
    """Its log lies elsewhere than its data."""

    def __init__(self, data: Path, log: Path, **environment: str) -> None:
        super().__init__(data, **environment)
        self._log = log

    async def start(self, errors: int | None = None) -> float:
        with self._log.open("ab") as log:
            return await super().start(log.fileno())

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self._log.read_text().splitlines() if line.startswith("{")]

    async def enough(self) -> bool:
        return bool((await self.client.get("/health/disk")).json()["enough"])


@pytest.fixture
async def service(host: Path, tmp_path: Path, image: str) -> AsyncIterator[Service]:
    options = {"DRIVER": "oci", "SANDBOX_IMAGE": image, "POOL_SIZE": "1", "SANDBOX_MEMORY_MB": "256"}
    options |= {"SANDBOX_DISK_MB": "1024", "SANDBOX_PIDS": "128"}
    after = settings.load(data_dir=host / "data", sandbox_image=image)
    async with Service(host / "data", tmp_path / "log", **options).running(after) as running:
        yield running


@dataclass
class Filler:
    """Another program of the host that takes every free byte at once, and goes on doing so."""

    folder: Path
    full: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        chunk = bytes(1024**2)
        with (self.folder / "fill").open("wb", buffering=0) as file:
            while not self.over.is_set():
                try:
                    file.write(chunk)
                except OSError:
                    chunk = chunk[: max(4096, len(chunk) // 2)]
                    if len(chunk) == 4096:
                        self.full.set()
                        self.over.wait(0.005)
        (self.folder / "fill").unlink()


@contextlib.asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[None]:
    filler = Filler(folder)
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(filler.run))
        try:
            assert await asyncio.to_thread(filler.full.wait, 60)
            yield
        finally:
            filler.over.set()


@dataclass
class Writer:
    """Writes files in a chat until it is told to end, and notes those that the service acknowledged."""

    service: Service
    chat: str
    kept: dict[str, str] = field(default_factory=dict)
    calls: int = 0
    refusals: list[str] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while not self.over.is_set():
            name, self.calls = f"f{self.calls}", self.calls + 1
            written = f"set -e; head -c 200000 /dev/urandom > {name}; sha256sum < {name}; touch empty-{name}"
            failed, said = await self.service.bash(self.chat, written)
            words = said.split()
            if not failed and len(words) == 2 and len(words[0]) == 64:
                self.kept[name] = words[0]
            else:
                self.refusals.append(said)

    async def calls_more(self, count: int) -> None:
        end = self.calls + count
        while self.calls < end:
            await asyncio.sleep(0.05)


async def command_line(data: Path, image: str, *arguments: str) -> tuple[int, str]:
    environment = os.environ | {"DATA_DIR": str(data), "SANDBOX_IMAGE": image, "DRIVER": "oci"}
    said = await asyncio.to_thread(command, arguments, environment, data.parent.parent)
    return said.code, said.output + said.errors


async def lost(service: Service, chat: str, kept: dict[str, str]) -> list[str]:
    """Acknowledged files that are not there as they were, of a chat that starts and can be written by itself."""
    async with asyncio.timeout(HEALED_SECONDS):
        while True:
            failed, said = await service.bash(chat, "echo w > writable && cat first && sha256sum f* 2> /dev/null; true")
            if not failed and said.startswith("hello"):
                break
            await asyncio.sleep(0.2)
    found = {line.split()[1]: line.split()[0] for line in said.splitlines() if len(line.split()) == 2}
    return [name for name, digest in kept.items() if found.get(name) != digest]


async def test_a_full_host_loses_no_chat_and_no_acknowledged_file(service: Service, host: Path, image: str) -> None:
    for chat in CHATS:
        assert (await service.bash(chat, "echo hello > first; rm -f f*; echo hello > first"))[0] is False
    assert (await service.client.post("/api/sandboxes/sleeps/stop")).status_code == 200
    assert await service.enough()
    writers = [Writer(service, chat) for chat in CHATS[:2]]
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run())
        await writers[0].calls_more(5)
        async with filled(host):
            await asyncio.gather(*(writer.calls_more(8) for writer in writers))
            assert (await service.client.get("/health")).json() == {"status": "healthy"}
            assert not await service.enough()
            for chat in ("sleeps", "new"):
                failed, said = await service.bash(chat, "true")
                assert (failed, "short of disk space" in said) == (True, True), said
            upload = await service.client.put("/api/uploads/new/file.txt", content=b"hello")
            assert (upload.status_code, upload.headers["Retry-After"]) == (503, "60"), upload.text
            for writer in writers:
                writer.over.set()
            for arguments in (("ps",), ("stop", "writes-too"), ("rm", "goes"), ("rm", "--now", "goes")):
                code, said = await command_line(host / "data", image, *arguments)
                assert code == 0, said
            alerts = [event for event in service.events() if "nearly full" in event]
            assert len(alerts) == 1
            await asyncio.to_thread(service.stop)
            await service.start()
    async with asyncio.timeout(HEALED_SECONDS):
        while not await service.enough():
            await asyncio.sleep(0.05)
    losses = {writer.chat: await lost(service, writer.chat, writer.kept) for writer in writers}
    losses["sleeps"] = await lost(service, "sleeps", {})
    assert losses == {"writes": [], "writes-too": [], "sleeps": []}
    assert all(len(writer.kept) >= 5 and writer.refusals for writer in writers)
    async with asyncio.timeout(HEALED_SECONDS):
        while not (await service.bash("new", "echo fine"))[1].startswith("fine"):
            await asyncio.sleep(0.2)
