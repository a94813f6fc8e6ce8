"""The file system of DATA_DIR has no inode left, or one, or two: a chat has one home, and keeps what it was told it has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cubicle.sandbox.lost_found import LostFound
from tests.support.process import ServiceProcess
from tests.survival.cut_disk import cut_disk

pytestmark = [pytest.mark.oci, pytest.mark.timeout(900)]

LEFT = range(8) if os.environ.get("CUBICLE_LONG") else (0, 1, 2, 3, 5)


def fill(data: Path, left: int) -> None:
    """Take all inodes but so many."""
    folder = data / "filler"
    folder.mkdir(exist_ok=True)
    while (free := os.statvfs(data).f_favail) != left:
        if free > left:
            (folder / str(len(os.listdir(folder)))).touch()
        else:
            next(iter(folder.iterdir())).unlink()


def free(data: Path) -> None:
    for path in (data / "filler").iterdir():
        path.unlink()


async def test_a_chat_has_one_home_whatever_inode_is_missing(tmp_path: Path, image: str) -> None:
    with cut_disk(tmp_path, "ext4", 1024**3, "-N", "600") as disk:
        usual = {"DRIVER": "oci", "SANDBOX_IMAGE": image, "POOL_SIZE": "1", "SANDBOX_MEMORY_MB": "256"}
        service = ServiceProcess(disk.data, **usual, SANDBOX_DISK_MB="60", SANDBOX_PIDS="128", MIN_FREE_MB="0")
        service.mounts = disk.mounts
        kept: dict[str, str] = {}
        try:
            await service.start()
            for left in LEFT:
                # Once with a blank sandbox of the pool, which only has to be bound, and once more without.
                await service.bash("warm", "echo warm")
                fill(disk.seen, left)
                for count in range(2):
                    chat = f"chat-{left}-{count}"
                    failed, said = await service.bash(chat, f"echo {chat} > ~/note; cat ~/note; sync ~/note")
                    if not failed and said == f"{chat}\n":
                        kept[chat] = said
                for chat, note in kept.items():
                    assert await service.bash(chat, "cat ~/note") == (False, note)
                free(disk.seen)
                service.kill()
                await service.start()
                owners = [path.readlink() for path in (disk.seen / "sandboxes").glob("*/owner")]
                assert len(owners) == len(set(owners)), "a chat has two homes"
                for chat, note in kept.items():
                    assert await service.bash(chat, "cat ~/note") == (False, note)
            assert LostFound(disk.seen).entries() == []
            assert kept
            for left in LEFT:
                for count in range(2):
                    failed, _ = await service.bash(f"chat-{left}-{count}", "echo works")
                    assert not failed
        finally:
            service.kill()
            await service.client.aclose()
