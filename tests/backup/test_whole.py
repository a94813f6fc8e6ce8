"""A backup and an import take their time: the service and its users go on meanwhile."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cubicle.backup import MARKER, sandbox_files
from cubicle.backup.chats import ChatPlace, NewSandbox, read_through
from cubicle.backup.scripts import program
from cubicle.backup.whole import backup, restore
from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.removal import journal_folder
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import SandboxSeen, State
from cubicle.sandbox.trash import TrashNote
from cubicle.sandbox.warm_pool import connect
from tests.support.emptying import leave

CHAT = Chat("one")
MAX_FILES = 2**30


class BusyDriver(MemoryDriver):
    """Something happens behind the list of sandboxes that a backup goes by."""

    meanwhile: Callable[[], Awaitable[None]] | None = None
    before_discard: Callable[[], Awaitable[None]] | None = None

    async def list(self) -> Sequence[SandboxSeen]:
        found = await super().list()
        work, self.meanwhile = self.meanwhile, None
        if work is not None:
            await work()
        return found

    async def discard(self, name: str, note: TrashNote) -> None:
        if self.before_discard is not None:
            await self.before_discard()
        await super().discard(name, note)


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[BusyDriver]:
    made = BusyDriver(tmp_path)
    await asyncio.to_thread(program, "pack")
    await made.open()
    await made.start("one", CHAT.digest)
    yield made
    await leave(made)


@pytest.fixture
def kept(driver: BusyDriver, tmp_path: Path) -> ChatPlace:
    index = ChatIndex(tmp_path / "chats")
    index.open()
    index.enter(CHAT)
    return ChatPlace(driver, index, tmp_path, MAX_FILES)


async def made_of(kept: ChatPlace) -> tuple[list[str], dict[str, str], list[str]]:
    """The chats of a backup that are whole, those that are not, and what a restore finds."""
    file = io.BytesIO()
    outcome = await backup(kept, file, lambda name: None)
    return outcome.done, outcome.failed, list(read_through(file, MAX_FILES).chats or {})


async def test_one_that_is_stopped_meanwhile_is_in_it(driver: BusyDriver, kept: ChatPlace) -> None:
    async def stop() -> None:
        await driver.stop("one")

    driver.meanwhile = stop
    assert await made_of(kept) == (["one"], {}, [CHAT.digest])
    assert [seen.state for seen in await driver.list()] == [State.STOPPED]


async def test_one_that_is_started_meanwhile_is_not_stopped(driver: BusyDriver, kept: ChatPlace) -> None:
    """A program runs in it from before its turn to after it."""
    used: list[Machine] = []

    async def use() -> None:
        await driver.start("one", CHAT.digest)
        used.append(await connect(driver, "one"))
        await used[0].output("sleep 1000 >/dev/null 2>&1 &")

    await driver.stop("one")
    driver.meanwhile = use
    assert await made_of(kept) == (["one"], {}, [CHAT.digest])
    assert used[0].alive
    used[0].close()


async def test_one_that_is_deleted_meanwhile_does_not_come_back(driver: BusyDriver, kept: ChatPlace) -> None:
    async def delete() -> None:
        await driver.delete("one")

    await driver.stop("one")
    driver.meanwhile = delete
    assert await made_of(kept) == ([], {}, [])
    assert await driver.list() == []


async def test_one_that_is_removed_and_made_anew_meanwhile_is_in_it(driver: BusyDriver, kept: ChatPlace) -> None:
    async def make_anew() -> None:
        await driver.delete("one")
        await driver.start("two", CHAT.digest)

    await driver.stop("one")
    driver.meanwhile = make_anew
    assert await made_of(kept) == (["one"], {}, [CHAT.digest])
    assert [seen.name for seen in await driver.list()] == ["two"]


async def test_a_folder_that_lies_on_another_disk_is_in_it(kept: ChatPlace, tmp_path: Path) -> None:
    """The operator has put a link in its place, and the service goes by that."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "chats").rename(tmp_path / "disk" / "chats")
    (tmp_path / "chats").symlink_to(tmp_path / "disk" / "chats")
    output = io.BytesIO()
    await backup(kept, output, lambda name: None)
    output.seek(0)
    with tarfile.open(fileobj=output, mode="r:*") as archive:
        assert f"data/chats/{CHAT.digest}" in archive.getnames()


async def test_what_is_left_out_of_a_chat_is_told(kept: ChatPlace, driver: BusyDriver) -> None:
    machine = await connect(driver, "one")
    await machine.output("mkfifo ~/pipe; mkdir ~/closed; echo mine > ~/closed/note; chmod 0 ~/closed")
    outcome = await backup(kept, io.BytesIO(), lambda name: None)
    await machine.output("chmod 700 ~/closed")
    machine.close()
    assert outcome.done == [CHAT.id]
    assert [line.partition(":")[0] for line in outcome.without[CHAT.id]] == ["'home/closed'", "'home/pipe'"]


@pytest.mark.parametrize("moment", ["before", "at the last moment"])
async def test_an_import_that_comes_too_late_leaves_the_chat_its_journal(
    driver: BusyDriver, kept: ChatPlace, moment: str
) -> None:
    await driver.delete("one")
    mine = journal_folder(kept.data_dir) / CHAT.digest

    async def make() -> None:
        await driver.start("mine", CHAT.digest)

    def write() -> None:
        mine.mkdir(parents=True)
        (mine / "note").write_text("mine")
        importing._journal.mkdir()

    importing = NewSandbox(kept, "import", CHAT.tenant)
    (await importing.open()).close()
    await asyncio.to_thread(write)
    if moment == "before":
        await make()
    else:
        driver.before_discard = make
    with pytest.raises(SandboxError, match="made meanwhile"):
        await importing.give_to(CHAT.digest, CHAT)
    await importing.undo()
    assert (mine / "note").read_text() == "mine"
    assert [path.name for path in mine.parent.iterdir()] == [CHAT.digest]
    assert [seen.name for seen in await driver.list()] == ["mine"]
    assert await driver.discarded() == []


GIVES_UP = "import sys; sys.stdin.buffer.read(100_000); sys.stdout.write('no'); sys.exit(1)"


async def test_a_chat_that_cannot_be_written_keeps_no_other_from_coming_back(
    driver: BusyDriver, kept: ChatPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [Chat("two"), Chat("three")]
    for chat in others:
        await asyncio.to_thread(kept.index.enter, chat)
        await driver.start(chat.id, chat.digest)
    for chat in (CHAT, *others):
        machine = await connect(driver, chat.id)
        await machine.output(f"echo {chat.id} > ~/name; head -c 3000000 /dev/urandom > ~/large")
        machine.close()
    file = io.BytesIO()
    await backup(kept, file, lambda name: None)
    for chat in (CHAT, *others):
        await driver.delete(chat.id)
    elsewhere = replace(kept, data_dir=tmp_path / "elsewhere")
    elsewhere.data_dir.mkdir()
    found = await asyncio.to_thread(read_through, file, MAX_FILES)
    real, tried = await asyncio.to_thread(program, "unpack"), []

    def unpack(name: str) -> str:
        tried.append(name)
        return GIVES_UP if len(tried) in (2, 4) else real

    monkeypatch.setattr(sandbox_files, "program", unpack)
    outcome = await restore(elsewhere, file, found, lambda name: None)
    (failed,) = outcome.failed
    assert outcome.failed == {failed: "The sandbox could not write the files: no"}
    assert {failed, *outcome.done} == {"one", "two", "three"}
    for chat in (CHAT, *others):
        if chat.id != failed:
            machine = await connect_to(driver, chat)
            assert (await machine.output("cat ~/name; stat -c %s ~/large"))[1].decode() == f"{chat.id}\n3000000\n"
            machine.close()
    assert (elsewhere.data_dir / MARKER).exists(), "no service starts here"
    # What is there needs no space a second time.
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=64 * 1024**2 + 3_500_000))
    outcome = await restore(elsewhere, file, found, lambda name: None, leave_out=["one", "two", "three"])
    assert (outcome.left_out, len(outcome.skipped), outcome.failed) == ([failed], 2, {})
    assert not (elsewhere.data_dir / MARKER).exists()


async def connect_to(driver: BusyDriver, chat: Chat) -> Machine:
    name = await driver.find(chat.digest)
    assert name is not None
    await driver.start(name, chat.digest)
    return await connect(driver, name)
