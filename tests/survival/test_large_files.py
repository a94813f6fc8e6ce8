"""Large files and many of them are ordinary: whole, quick to list, and no memory on either side.

CUBICLE_LONG=1 takes the sizes that people may really have: 2 GB in one upload, 5 GB in one archive.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.process import ACCEPT, ServiceProcess

MB = 1_000_000
LONG = bool(os.environ.get("CUBICLE_LONG"))
UPLOAD = 2_000 * MB if LONG else 100 * MB
MAX_SIZE = 4_400 * MB if LONG else 60 * MB
"""Of the archived files: beyond 4 GiB in the long run, where plain zip ends."""
REST = 600 * MB if LONG else 20 * MB
FILES = 1000 if LONG else 300
FLAT = 20.0

pytestmark = [pytest.mark.oci, pytest.mark.serial, pytest.mark.timeout(1800 if LONG else 300)]


@pytest.fixture
def options() -> dict[str, str]:
    return {"SANDBOX_DISK_MB": "8000", "MAX_UPLOAD_MB": "3000", "POOL_SIZE": "0"}


@pytest.mark.parametrize("length", [{}, {"Content-Length": str(UPLOAD)}], ids=["unknown length", "known length"])
async def test_a_large_upload_arrives_whole_and_costs_no_memory(
    service: ServiceProcess, length: dict[str, str]
) -> None:
    piece = os.urandom(MB)
    digest = hashlib.sha256()

    async def body() -> AsyncIterator[bytes]:
        for _ in range(UPLOAD // MB):
            digest.update(piece)
            yield piece

    await service.client.post("/api/uploads/large/first", content=piece)
    before, inside = _peak(service.pid), await _guest_peak(service)
    answer = await service.client.post("/api/uploads/large/large.bin", content=body(), headers=length, timeout=900)
    assert answer.status_code == 201, answer.text
    assert (answer.json()["size"], answer.json()["sha256"]) == (UPLOAD, digest.hexdigest())
    assert _peak(service.pid) - before < FLAT
    assert await _guest_peak(service) - inside < FLAT
    seen = await service.bash("large", "sha256sum < /mnt/user-data/uploads/large.bin", timeout=600)
    assert seen == (False, digest.hexdigest() + "  -\n")
    async with service.client.stream("GET", "/files/large/large.bin", timeout=900) as download:
        copy = hashlib.sha256()
        async for chunk in download.aiter_raw():
            copy.update(chunk)
    assert copy.hexdigest() == digest.hexdigest()
    assert _peak(service.pid) - before < FLAT


async def test_many_files_are_all_listed_and_quickly(service: ServiceProcess) -> None:
    names = [f"folder-{number % 7}/file {number:04}.txt" for number in range(FILES)]
    for name in names:
        assert (await service.client.post(f"/api/uploads/many/{name}", content=name.encode())).status_code == 201
    assert await _resources(service, "many") == {name.rpartition("/")[2] for name in names}
    one = await _seconds(service, "/files/none/")
    for address in ("/api/uploads/many", "/files/many/", "/files/many/uploads/folder-0/"):
        assert await _seconds(service, address) < max(1.0, 100 * one), address
    listed = (await service.client.get("/api/uploads/many")).json()["files"]
    assert sorted(file["filename"] for file in listed) == sorted(names)


async def test_the_archive_of_a_large_stopped_chat_is_valid(service: ServiceProcess, tmp_path: Path) -> None:
    await service.client.post("/api/uploads/chest/given.txt", content=b"given")
    fill = f"""cd /mnt/user-data/outputs && head -c 20000000 /dev/urandom > /tmp/part
        for i in $(seq {MAX_SIZE // (20 * MB)}); do cat /tmp/part; done > largest.bin
        yes some text that shrinks | head -c {REST} > ~/rest.txt
        touch -d '2024-05-06 07:08:10 UTC' largest.bin && sha256sum < largest.bin"""
    failed, said = await service.bash("chest", fill, timeout=900)
    assert not failed, said
    await service.client.post("/api/sandboxes/chest/stop")
    before, began = _peak(service.pid), time.monotonic()
    path = tmp_path / "chest.zip"
    with path.open("wb") as file:
        async with service.client.stream("GET", "/files/chest/archive?wake=1", timeout=900) as answer:
            assert answer.status_code == 200
            async for chunk in answer.aiter_raw():
                file.write(chunk)
    assert _peak(service.pid) - before < FLAT, f"after {time.monotonic() - began:.0f} s"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        found = archive.getinfo("outputs/largest.bin")
        assert (found.file_size, found.date_time) == (MAX_SIZE, (2024, 5, 6, 7, 8, 10))
        assert archive.getinfo("workspace/rest.txt").file_size == REST
        assert archive.read("uploads/given.txt") == b"given"
        with archive.open(found) as content:
            assert hashlib.file_digest(content, "sha256").hexdigest() in said  # type: ignore[arg-type]
    if shutil.which("unzip"):
        subprocess.run(["unzip", "-tqq", str(path)], check=True, timeout=600)


async def _resources(service: ServiceProcess, chat: str) -> set[str]:
    body = {"jsonrpc": "2.0", "id": 1, "method": "resources/list", "params": {}}
    headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat}
    answer = await service.client.post("/mcp", content=json.dumps(body), headers=headers)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    result = json.loads(lines[-1] if lines else answer.text)["result"]
    assert "nextCursor" not in result
    return {resource["name"] for resource in result["resources"]}


async def _seconds(service: ServiceProcess, address: str) -> float:
    """The quickest of three."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert (await service.client.get(address)).status_code == 200
        took.append(time.monotonic() - began)
    return min(took)


def _peak(pid: int) -> float:
    """The most memory that the process has held so far, in MB."""
    return _field(Path(f"/proc/{pid}/status").read_text())


async def _guest_peak(service: ServiceProcess) -> float:
    return _field((await service.bash("large", "cat /proc/1/status"))[1])


def _field(status: str) -> float:
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None, status
    return int(found[1]) / 1024
