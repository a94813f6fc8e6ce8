"""`cubicle export`, `import`, `backup` and `restore`, with the true service beside them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.settings import Settings
from tests.cli.test_running import PROGRAM, environment, said
from tests.support.emptying import empty
from tests.support.process import ServiceProcess

pytestmark = pytest.mark.real
TREE = """
mkdir -p ~/project/.hidden ~/project/empty ~/.config && cd ~/project
echo 'the text' > text.txt; printf '#!/bin/sh\\necho ran' > run; chmod 755 run; chmod 750 empty
head -c 3000000 /dev/zero > zeros; seq 1 100000 > numbers; echo dot > ~/.config/dot
ln -s text.txt relative; ln -s /usr/bin/env absolute; ln -s nowhere dangling; mkfifo fifo
touch -d @1600000000 text.txt; printf x > "$(printf 'odd\\nname')"
echo result > /mnt/user-data/outputs/result.txt
"""
LOOK = r"""
cd / && find home/assistant mnt/user-data/outputs mnt/user-data/uploads -name '.cubicle*' -prune -o \( -type f -o -type l -o -type d \) \
  -printf '%p %y %m %l\n' | sort
cd ~/project && sha256sum text.txt numbers zeros run && stat -c %Y text.txt && ./run && cat /mnt/user-data/uploads/folder/up.bin
"""


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    folder = tmp_path / "first"
    folder.mkdir()
    settings = Settings(_env_file=None, driver="memory", data_dir=folder / "data")  # type: ignore[call-arg]
    made = ServiceProcess(folder / "data", DRIVER="memory", POOL_SIZE="0")
    async with made.running(settings):
        yield made


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[Path]:
    """Another machine, as far as a folder is one."""
    folder = tmp_path / "second"
    folder.mkdir()
    yield folder
    await empty(MemoryDriver(folder / "data"))


async def run(folder: Path, *arguments: str, code: int = 0, **changes: str) -> str:
    found, text = await asyncio.to_thread(said, folder, *arguments, **changes)
    assert found == code, text
    assert "Traceback" not in text
    return text


async def make_chat(service: ServiceProcess, chat: str) -> str:
    failed, text = await service.bash(chat, TREE)
    assert not failed, text
    assert (await service.client.put(f"/api/uploads/{chat}/folder/up.bin", content=b"uploaded")).status_code == 201
    failed, text = await service.bash(chat, LOOK)
    assert not failed, text
    return text


@contextlib.asynccontextmanager
async def started(folder: Path) -> AsyncIterator[ServiceProcess]:
    made = ServiceProcess(folder / "data", DRIVER="memory", POOL_SIZE="0")
    try:
        await made.start()
        yield made
    finally:
        made.stop()
        await made.client.aclose()


async def test_an_exported_chat_is_the_same_where_it_is_imported(
    service: ServiceProcess, elsewhere: Path, tmp_path: Path
) -> None:
    before = await make_chat(service, "one")
    folder, file = service._data.parent, tmp_path / "one.cubicle"
    told = await run(folder, "export", "one", str(file))
    assert "Wrote one to" in told
    assert "LEFT OUT of one: 'home/" in told
    assert file.stat().st_mode & 0o777 == 0o600
    assert "already" in await run(folder, "export", "one", str(file), code=1)
    assert "Imported one of the tenant main." in await run(elsewhere, "import", str(file))
    async with started(elsewhere) as other:
        assert (await other.bash("one", LOOK))[1] == before
        text = await run(elsewhere, "journal", "one", "--verify")
        assert "are good" in text
        assert "NOT GOOD" not in text
        assert "the text" in await run(elsewhere, "journal", "one")
    with tarfile.open(file) as tar:  # any tar reads it
        names = tar.getnames()
    assert names[0] == "cubicle.json"
    assert names[-1] == "SHA256SUMS"
    assert f"chats/{Chat('one').digest}/left-out.txt" in names  # it names the fifo


async def test_a_chat_that_is_there_is_never_replaced(service: ServiceProcess, tmp_path: Path) -> None:
    before = await make_chat(service, "one")
    folder, file = service._data.parent, tmp_path / "one.cubicle"
    await run(folder, "export", "one", str(file))
    assert "has a sandbox" in await run(folder, "import", str(file), code=1)
    assert "Imported two" in await run(folder, "import", str(file), "--as", "two")  # beside the service
    assert (await service.bash("two", LOOK))[1] == before
    assert "NOT GOOD" not in await run(folder, "journal", "two", "--verify")
    assert (await run(folder, "journal", "two")).count("the text") >= 1
    await run(folder, "rm", "two")
    assert "in the trash" in await run(folder, "import", str(file), "--as", "two", code=1)
    listed = await run(folder, "ps")
    assert "import-" not in listed
    assert not list((folder / "data").glob("importing-*"))


async def test_a_stopped_chat_is_exported_and_stopped_again(service: ServiceProcess, tmp_path: Path) -> None:
    await make_chat(service, "one")
    folder = service._data.parent
    await run(folder, "stop", "one")
    await run(folder, "export", "one", str(tmp_path / "file"))
    assert "stopped" in await run(folder, "ps")


async def test_two_imports_of_one_name_at_once_make_one_chat(
    service: ServiceProcess, elsewhere: Path, tmp_path: Path
) -> None:
    await make_chat(service, "one")
    file = tmp_path / "file"
    await run(service._data.parent, "export", "one", str(file))
    ended = await asyncio.gather(*(asyncio.to_thread(said, elsewhere, "import", str(file)) for _ in range(2)))
    assert sorted(code for code, _ in ended) == [0, 1], ended
    listed = await run(elsewhere, "ps")
    assert listed.count("one") == 1
    assert "import-" not in listed


async def test_an_import_that_is_killed_leaves_no_half_chat(
    service: ServiceProcess, elsewhere: Path, tmp_path: Path
) -> None:
    await make_chat(service, "one")
    await service.bash("one", "head -c 30000000 /dev/urandom > ~/large")
    file = tmp_path / "file"
    await run(service._data.parent, "export", "one", str(file))
    owner = elsewhere / "data" / "memory-owners" / Chat("one").digest
    with subprocess.Popen([*PROGRAM, "import", str(file)], cwd=elsewhere, env=environment(elsewhere)) as process:
        while not list((elsewhere / "data").glob("memory/*/home/project")):
            assert process.poll() is None
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not owner.is_symlink()
    listed = await run(elsewhere, "ps")
    assert "import-" in listed  # a person sees what is left, and removes it
    await run(elsewhere, "import", str(file))
    assert owner.is_symlink()


async def test_a_full_disk_leaves_nothing_and_says_so(service: ServiceProcess, tmp_path: Path) -> None:
    await service.bash("one", "head -c 30000000 /dev/urandom > ~/large")
    folder, small = service._data.parent, tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)]
    if subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("needs to mount")
    try:
        assert "No space left" in await run(folder, "export", "one", str(small / "file"), code=1)
        assert list(small.iterdir()) == []
        assert "No space left" in await run(folder, "backup", str(small / "file"), code=1)
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


async def test_hostile_files_are_refused_in_a_sentence(elsewhere: Path, tmp_path: Path) -> None:
    """What is in them: tests/backup/test_archive_file.py."""
    file = tmp_path / "file"
    for content in (b"", b"x" * 1000, os.urandom(100_000)):
        file.write_bytes(content)
        for command in ("import", "restore"):
            assert (await run(elsewhere, command, str(file), code=1)).startswith("Error: It is no archive")
    with tarfile.open(file, "w:gz") as tar:
        info = tarfile.TarInfo("../../../../../../tmp/cubicle-escaped")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    assert "Error: It" in await run(elsewhere, "import", str(file), code=1)
    assert not Path("/tmp/cubicle-escaped").exists()
    assert "not a plain file" in await run(elsewhere, "import", "/dev/zero", code=1)
    assert not list((elsewhere / "data").glob("memory/*"))


async def test_everything_comes_back_from_a_backup_on_another_machine(
    service: ServiceProcess, elsewhere: Path, tmp_path: Path
) -> None:
    chats = ["one", "two", "three"]
    before = {chat: await make_chat(service, chat) for chat in chats}
    folder, file = service._data.parent, tmp_path / "backup"
    await run(folder, "stop", "two")
    work = asyncio.create_task(_keep_calling(service, "three"))  # the service is in use meanwhile
    assert "Wrote 3 chats" in await run(folder, "backup", str(file))
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    secret = (folder / "data" / "link-secret").read_bytes()
    assert "Restored 3 chats." in await run(elsewhere, "restore", str(file))
    assert "is not empty" in await run(elsewhere, "restore", str(file), code=1)
    assert (elsewhere / "data" / "link-secret").read_bytes() == secret
    async with started(elsewhere) as other:
        for chat in chats:
            assert (await other.bash(chat, LOOK))[1] == before[chat]
            assert "NOT GOOD" not in await run(elsewhere, "journal", chat, "--verify")
            assert "the text" in await run(elsewhere, "journal", chat)


async def _keep_calling(service: ServiceProcess, chat: str) -> None:
    while True:
        await service.bash(chat, "date > /tmp/now")


async def test_a_restore_that_was_cut_off_goes_on(service: ServiceProcess, elsewhere: Path, tmp_path: Path) -> None:
    chats = [f"chat-{number}" for number in range(4)]
    before = {chat: await make_chat(service, chat) for chat in chats}
    file = tmp_path / "backup"
    await run(service._data.parent, "backup", str(file))
    owners = elsewhere / "data" / "memory-owners"
    with subprocess.Popen([*PROGRAM, "restore", str(file)], cwd=elsewhere, env=environment(elsewhere)) as process:
        while sum(1 for digest in (Chat(chat).digest for chat in chats) if (owners / digest).is_symlink()) < 2:
            assert process.poll() is None
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert "was not finished" in await run(elsewhere, "serve", code=1)
    text = await run(elsewhere, "restore", str(file))
    assert "were there already" in text
    async with started(elsewhere) as other:
        for chat in chats:
            assert (await other.bash(chat, LOOK))[1] == before[chat]


async def test_no_restore_beside_a_service(service: ServiceProcess, tmp_path: Path) -> None:
    await make_chat(service, "one")
    folder, file = service._data.parent, tmp_path / "backup"
    await run(folder, "backup", str(file))
    assert "Another service uses" in await run(folder, "restore", str(file), code=1)


async def test_a_backup_of_nothing_is_refused(tmp_path: Path) -> None:
    """A wrong DATA_DIR would give a file that looks like a backup."""
    folder = tmp_path / "elsewhere"
    for there in (False, True):
        if there:
            (folder / "data").mkdir(parents=True)
        else:
            folder.mkdir()
        assert "There is nothing in DATA_DIR" in await run(folder, "backup", str(tmp_path / "file"), code=1)
        assert not (tmp_path / "file").exists()
        assert (folder / "data").exists() == there
        if not there:
            folder.rmdir()
