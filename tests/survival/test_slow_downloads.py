"""A client that does not take what it asked for keeps nothing of the sandbox: no mount, loop device or descriptor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from cubicle.drivers.common.instance import instance_of
from cubicle.drivers.oci.driver import RUN_DIR
from tests.support import remains
from tests.support.process import ServiceProcess

pytestmark = [pytest.mark.oci, pytest.mark.timeout(300)]
SIZE = 40_000_000
LIMIT = 90.0


@pytest.fixture
def options() -> dict[str, str]:
    return {"POOL_SIZE": "0"}


@pytest.mark.parametrize("end", ["stop", "delete", "the client's"])
async def test_the_end_of_a_slow_download_leaves_nothing(service: ServiceProcess, tmp_path: Path, end: str) -> None:
    stage = RUN_DIR / instance_of(tmp_path / "data")
    failed, said = await service.bash("slow", f"head -c {SIZE} /dev/zero > /mnt/user-data/outputs/large.bin")
    assert not failed, said
    before = _descriptors(service.pid)
    readers, writers = [], []
    for number in range(6):
        reader, writer = await asyncio.open_connection(sock=await _slow(service.port), limit=65536)
        part = f"Range: bytes={number * 5_000_000}-\r\n" if number else ""
        writer.write(f"GET /files/slow/large.bin HTTP/1.1\r\nHost: 127.0.0.1\r\n{part}\r\n".encode())
        status = await asyncio.wait_for(reader.readline(), LIMIT)
        assert (b" 206 " if number else b" 200 ") in status
        readers.append(reader)
        writers.append(writer)
    assert sum("large.bin" in path for path in _descriptors(service.pid)) == len(writers)
    if end == "the client's":
        for writer in writers:
            writer.transport.abort()
    elif end == "stop":
        assert (await service.client.post("/api/sandboxes/slow/stop")).is_success
    else:
        assert (await service.client.delete("/api/sandboxes/slow")).is_success
    await _until(lambda: not any("large.bin" in path for path in _descriptors(service.pid)))
    if end != "the client's":
        await _until(lambda: not remains.mounts(stage) and not remains.loop_devices(tmp_path))
        for reader in readers:  # what it was sent already, and then the end
            assert len(await asyncio.wait_for(reader.read(-1), LIMIT)) < SIZE
    for writer in writers:
        writer.close()
    await _until(lambda: len(_descriptors(service.pid)) < len(before) + len(writers))
    answer = await service.client.get("/files/slow/large.bin?wake=1", headers={"Range": "bytes=0-1999999"})
    assert (answer.status_code, len(answer.content)) == (
        (404, len(answer.content)) if end == "delete" else (206, 2_000_000)
    )


async def _slow(port: int) -> socket.socket:
    """A connection that has little room, so that the service has to wait."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


def _descriptors(pid: int) -> list[str]:
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not holds():
            await asyncio.sleep(0.02)
