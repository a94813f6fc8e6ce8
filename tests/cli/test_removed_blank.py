"""`cubicle rm --all` beside a service, which goes on giving blank sandboxes to chats."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from cubicle.cli import main
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_chat_index, make_driver
from cubicle.drivers.memory import MemoryDriver
from cubicle.sandbox.driver import SandboxSeen
from cubicle.sandbox.trash import TrashNote
from cubicle.settings import load
from tests.support.emptying import leave

CHAT = Chat("came-meanwhile")


@pytest.mark.parametrize("then", ["used", "removed"])
async def test_a_blank_sandbox_that_a_chat_was_given_meanwhile_is_not_deleted_for_good(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(driver="memory", data_dir=tmp_path / "data")
    driver, index = make_driver(settings), make_chat_index(settings)
    await driver.open()
    await asyncio.to_thread(index.open)
    await driver.start("blank", None)
    list_ = MemoryDriver.list
    looks: list[Sequence[SandboxSeen]] = []

    async def list_and_give(self: MemoryDriver) -> Sequence[SandboxSeen]:
        found = await list_(self)
        looks.append(found)
        if len(looks) == 1:
            await driver.start("blank", CHAT.digest)
            await asyncio.to_thread(index.enter, CHAT)
            if then == "removed":
                await driver.discard("blank", TrashNote(CHAT, "by its user", 1.0))
        return found

    monkeypatch.setattr(MemoryDriver, "list", list_and_give)
    try:
        command = CliRunner(env={"DRIVER": "memory", "DATA_DIR": str(settings.data_dir)})
        done = await asyncio.to_thread(command.invoke, main, ["rm", "--all"])
        assert done.exit_code == 0, done.output
        assert [each.owner for each in looks[0]] == [None]
        [kept] = await driver.discarded()
        assert (kept.name, kept.owner) == ("blank", CHAT.digest)
        assert kept.note is not None
        assert kept.note.chat == CHAT
    finally:
        await leave(driver)
