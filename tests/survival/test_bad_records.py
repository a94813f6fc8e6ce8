"""Damaged records of the service itself: it starts, and the chats beside the damaged one go on."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from tests.survival.conftest import serving

pytestmark = [pytest.mark.oci, pytest.mark.timeout(900)]

FILES = (
    "chats/{digest}",
    "agents/{digest}",
    "agent-runs/{digest}",
    "tenants/main",
    "egress/authority.pem",
    "egress/allowances/{digest}",
    "link-secret",
    "serving",
    "clock.json",
)
FOLDERS = ("chats", "agents", "agent-runs", "tenants", "egress", "trash")


def _folder(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "inner").write_text("somebody's")


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "nested": lambda path: path.write_text("[" * 100_000),
    "other-shape": lambda path: path.write_text('{"chat": ["x"], "tenant": 7, "dollars": "much", "version": 1}'),
    "a-folder": _folder,
    "cyclic-link": lambda path: path.symlink_to(path.name),
}


def damage(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    DAMAGES[kind](path)


async def test_the_service_starts_and_no_chat_is_lost(tmp_path: Path, image: str) -> None:
    data = tmp_path / "data"
    async with serving(tmp_path, image, {}) as service:
        for chat in ("damaged", "well"):
            assert await service.bash(chat, f"echo {chat} > ~/note; cat ~/note") == (False, f"{chat}\n")
        table = [(FILES, kind) for kind in DAMAGES] + [(FOLDERS, kind) for kind in ("empty", "cyclic-link")]
        for records, kind in table:
            await asyncio.to_thread(service.kill)
            for record in records:
                damage(data / record.format(digest=Chat("damaged").digest), kind)
            await service.start()
            for chat in ("damaged", "well"):
                assert await service.bash(chat, "cat ~/note") == (False, f"{chat}\n"), (records, kind)
            assert (data / "link-secret").stat().st_size >= 32
