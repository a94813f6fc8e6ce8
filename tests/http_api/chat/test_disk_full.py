"""An upload that does not fit into the sandbox's disk, on the driver that limits it."""

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.oci.driver import OciDriver
from cubicle.images.store import SUBUID_START, ImageStore
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import SandboxLimits
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import load
from tests.drivers.makers import some_base

from .conftest import site_of

pytestmark = pytest.mark.oci
MB = 1024**2


@pytest.fixture
def driver(tmp_path):
    store = ImageStore(load().image_dir)
    return OciDriver(tmp_path, store, some_base(store).digest, SUBUID_START, limits=SandboxLimits(disk_bytes=48 * MB))


async def streamed(size):
    for _ in range(size):
        yield b"x" * MB


@pytest.mark.parametrize(
    "body", [streamed, lambda size: b"x" * size * MB], ids=["of unknown length", "of known length"]
)
async def test_it_is_507_nothing_is_kept_and_the_chat_goes_on(driver, tmp_path, body):
    chat = Chat("full")
    async with Fleet(driver, ChatIndex(tmp_path / "ledger"), pool_size=0) as fleet:
        try:
            async with site_of(fleet, limit_mb=512) as site:
                small = await site.client.post("/api/uploads/full/small.bin", content=body(2))
                assert small.status_code == 201
                answer = await site.client.post("/api/uploads/full/large.bin", content=body(200))
                assert answer.status_code == 507, answer.text
                assert "no room" in answer.json()["detail"]
                assert await site.bash(chat, "ls -A /mnt/user-data/uploads") == "small.bin\n"
                again = await site.client.post("/api/uploads/full/small.bin", content=body(3))
                assert again.status_code == 201
                assert len((await site.client.get("/files/full/small.bin")).content) == 3 * MB
        finally:
            await fleet.remove(chat)
