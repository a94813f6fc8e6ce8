"""`cubicle ps`, `shell`, `stop` and `rm`, as a person calls them beside a service or without one."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cubicle import removal
from cubicle.audit import inbox
from cubicle.cli import errors, main
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_chat_index, make_driver
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import load
from tests.support.emptying import empty

pytestmark = pytest.mark.timeout(300)  # each call is a Python of its own, with all that it imports
CHAT = "a-project-with-a-name-of-some-length"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Call]:
    """The command line over a data folder in which one chat has a sandbox: (exit code, output, error output)."""
    settings = load(driver="memory", data_dir=tmp_path / "data")
    async with Fleet(make_driver(settings), make_chat_index(settings), pool_size=0) as fleet, fleet.lease(Chat(CHAT)):
        pass

    def call(*arguments: str, input: str = "") -> tuple[int, str, str]:
        environment = os.environ | {"DRIVER": "memory", "DATA_DIR": str(settings.data_dir), "COLUMNS": "80"}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        program = [sys.executable, "-c", "from cubicle.cli import main; main()", *arguments]
        done = subprocess.run(
            program, env=environment, input=input, capture_output=True, text=True, timeout=200, check=False
        )
        return done.returncode, done.stdout, done.stderr

    yield call
    await empty(make_driver(settings))


async def test_a_sandbox_is_listed_by_its_whole_name_stopped_and_removed(call: Call, tmp_path: Path) -> None:
    def ps() -> tuple[int, str]:
        done = CliRunner(env={"DRIVER": "memory", "DATA_DIR": str(tmp_path / "data"), "COLUMNS": "80"}).invoke(
            main, ["ps"]
        )
        return done.exit_code, done.stdout

    code, output, _ = call("ps")
    assert code == 0
    heading, row = output.splitlines()
    assert heading.split() == ["CHAT", "TENANT", "STATE", "AGE", "IDLE", "MEMORY", "PROCESSES", "IMAGE", "SANDBOX"]
    assert row.split()[:3] == [CHAT, "main", "running"]
    assert all(re.fullmatch(r"\d+[smh]", span) for span in row.split()[3:5])
    assert call("stop", CHAT) == (0, f"Stopped {CHAT}.\n", "")
    assert (await asyncio.to_thread(ps))[1].splitlines()[1].split()[2] == "stopped"
    told = (
        f"Removed {CHAT}. For 7 days `cubicle undelete {CHAT}` brings it back; "
        f"`cubicle rm --now {CHAT}` frees the space at once.\n"
    )
    records = [tmp_path / "data" / folder / Chat(CHAT).digest for folder in ("agents", "egress/allowances")]
    for record in records:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("{}")
    assert call("rm", CHAT) == (0, told, "")
    assert [record for record in records if record.exists()] == []
    code, output = await asyncio.to_thread(ps)
    nothing, trash = output.splitlines()
    assert (code, nothing) == (0, f"No sandboxes in DATA_DIR={tmp_path / 'data'}.")
    assert re.fullmatch(r"In the trash: 1 removed sandbox, \d+ KB on disk\. `cubicle undelete` lists them\.", trash)


async def test_a_removed_chat_is_listed_in_the_trash_and_brought_back(call: Call, tmp_path: Path) -> None:
    assert call("shell", CHAT, "sh", "-c", "echo kept > ~/kept")[0] == 0
    assert call("undelete") == (0, f"The trash of DATA_DIR={tmp_path / 'data'} is empty.\n", "")
    assert call("rm", CHAT)[0] == 0
    heading, row, told = call("undelete")[1].splitlines()
    assert heading.split() == ["CHAT", "TENANT", "REMOVED", "SIZE", "SANDBOX", "REASON"]
    assert re.fullmatch(rf"{CHAT} +main +\d+[sm] ago +\d+ KB +s[0-9a-f]+ +removed by hand", row)
    assert re.fullmatch(r"\d+ KB on disk\. A sandbox is deleted 7 days after it was removed \(TRASH_DAYS\)\.", told)
    assert call("undelete", CHAT) == (0, f"Restored {CHAT} with its files.\n", "")
    assert call("shell", CHAT, "sh", "-c", "cat ~/kept") == (0, "kept\n", "")
    assert call("undelete", CHAT) == (
        1,
        "",
        f"Error: Nothing of the chat {CHAT} is in the trash. `cubicle undelete` lists what is there.\n",
    )


async def test_a_chat_with_a_new_sandbox_gets_the_old_one_under_another_name(call: Call, tmp_path: Path) -> None:
    assert call("shell", CHAT, "sh", "-c", "echo kept > ~/kept")[0] == 0
    assert call("rm", CHAT)[0] == 0
    settings = load(driver="memory", data_dir=tmp_path / "data")
    async with Fleet(make_driver(settings), make_chat_index(settings), pool_size=0) as fleet, fleet.lease(Chat(CHAT)):
        pass
    assert call("undelete", CHAT) == (
        1,
        "",
        f"Error: The chat {CHAT} has a new sandbox meanwhile. Restore the old one under another name: "
        f"`cubicle undelete {CHAT} --as NEW`.\n",
    )
    assert call("undelete", CHAT, "--as", "old") == (0, "Restored old with its files.\n", "")
    assert call("shell", "old", "sh", "-c", "cat ~/kept") == (0, "kept\n", "")
    assert call("shell", CHAT, "ls") == (0, "", "")


async def test_a_removal_now_is_for_good_and_takes_the_trash_with_it(call: Call, tmp_path: Path) -> None:
    assert call("rm", CHAT)[0] == 0
    assert call("rm", "--now", CHAT) == (0, f"Deleted {CHAT} from the trash for good.\n", "")
    assert call("undelete") == (0, f"The trash of DATA_DIR={tmp_path / 'data'} is empty.\n", "")
    assert call("rm", CHAT)[0] == 1


async def test_a_command_in_a_sandbox_has_this_input_and_its_exit_code_is_handed_on(call: Call) -> None:
    assert call("shell", CHAT, "sh", "-c", "tr a-z A-Z; exit 3", input="typed\n") == (3, "TYPED\n", "")
    assert call("shell", CHAT, input="echo $((6*7))\n") == (0, "42\n", "")


async def test_the_audit_log_is_told_of_each_shell_and_of_each_link(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_API_KEY", "the-key-of-the-service")
    assert call("shell", CHAT, "sh", "-c", "exit 3")[0] == 3
    assert call("links", "add", CHAT)[0] == 0
    told = [body for _, body in inbox.read_notes(removal.audit_folder(tmp_path / "data"))]
    assert len(told) == 2
    assert b"cubicle shell" in told[0]
    assert b"cubicle links add" in told[1]


@pytest.mark.parametrize("path", sorted(errors.CHANGES))
def test_each_command_that_the_audit_log_is_told_of_is_one(path: str) -> None:
    command: click.Command | None = main
    for name in path.split()[1:]:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None


@pytest.mark.parametrize("command", ["shell", "stop", "rm"])
def test_a_chat_without_a_sandbox_is_told_in_a_sentence(command: str, tmp_path: Path) -> None:
    done = CliRunner(env={"DRIVER": "memory", "DATA_DIR": str(tmp_path)}).invoke(main, [command, "nobody"])
    said = "Error: The chat nobody has no sandbox. `cubicle ps` lists those that there are.\n"
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", said)
