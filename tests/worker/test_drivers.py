"""The network worker beside sandboxes of every driver; names, which only the transparent proxy looks up, and floods of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cubicle.drivers.oci import transparent_proxy
from cubicle.drivers.oci.driver import OciDriver
from cubicle.images.store import SUBUID_START, ImageStore
from cubicle.sandbox.driver import Driver
from cubicle.settings import load
from tests.conftest import absent
from tests.drivers.makers import ISOLATING, some_base
from tests.egress.servers import http_server
from tests.worker.conftest import CHAT, OTHER, ground_of, shell
from tests.worker.test_floods import memory_of, visit
from tests.worker.test_network import AGAIN, fetch, kill

pytestmark = pytest.mark.anyio

NAMES_FLOOD = r"""
import random, socket, threading, time
def query(name):
    head = random.randbytes(2) + b"\x01\x00\x00\x01" + bytes(6)
    return head + b"".join(bytes([len(part)]) + part for part in name.split(b".")) + b"\0\0\1\0\1"
def datagrams():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        try:
            sock.sendto(query(b"n%d.example" % random.getrandbits(60)), ("127.0.0.1", 53))
        except OSError:
            time.sleep(0.001)
def streams():
    while True:
        try:
            with socket.create_connection(("127.0.0.1", 53), timeout=60) as sock:
                while True:
                    asked = query(b"n%d.example" % random.getrandbits(60))
                    sock.sendall(b"".join(2 * [len(asked).to_bytes(2, "big") + asked]))
                    if not sock.recv(65536):
                        break
        except OSError:
            time.sleep(0.001)
for work in (datagrams, datagrams, streams, streams):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture(params=ISOLATING)
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Driver:
    made: Driver = request.param(tmp_path)()
    return made


@pytest.fixture
def transparent_driver(tmp_path: Path) -> OciDriver:
    if not transparent_proxy.available():
        absent("needs nft and ip (Debian: apt-get install nftables iproute2)")
    store = ImageStore(load().image_dir)
    return OciDriver(tmp_path / "data", store, some_base(store).digest, SUBUID_START, runtime="runc", transparent=True)


async def test_a_killed_worker_breaks_no_sandbox_of_any_driver(tmp_path: Path, driver: Driver) -> None:
    with http_server(tmp_path) as server:
        async with ground_of(tmp_path, driver) as ground:
            machine = await ground.machine()
            assert '"GET"' in await fetch(machine, server)
            await kill(ground)
            assert '"GET"' in await fetch(machine, server, AGAIN)
            assert machine.alive


@pytest.mark.oci
async def test_a_flood_of_name_queries_leaves_the_others_alone(tmp_path: Path, transparent_driver: OciDriver) -> None:
    with http_server(tmp_path) as server:
        async with ground_of(
            tmp_path, transparent_driver, transparent=lambda: transparent_driver.capabilities.transparent_proxy
        ) as ground:
            attacker, bystander = await ground.machine(CHAT), await ground.machine(OTHER)
            worker = ground.network.pid
            assert worker is not None
            url = f"http://127.0.0.1:{server.port}/echo"
            quiet, before = await visit(bystander, url), memory_of(worker)
            async with attacker.run(["python3", "-c", NAMES_FLOOD]) as flood:
                async with asyncio.timeout(60):
                    await anext(aiter(flood.output))
                flooded, grown = await visit(bystander, url), memory_of(worker) - before
                found = await shell(bystander, "getent hosts web.example")
                await flood.kill()
            print(f"quiet p50 {quiet[15] * 1e3:.1f} ms, flooded {flooded[15] * 1e3:.1f} ms, memory +{grown >> 20} MiB")
            assert ground.network.pid == worker
    assert found.startswith(("198.18.", "198.19."))
    assert grown < 100 << 20
    assert flooded[15] < max(0.25, 20 * quiet[15])
