"""What create_file and str_replace wrote can be taken back, as long as nobody changed it since."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from cubicle.chat.activity_events import ChangedFile
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.guest import kept_files
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import HOME, OUTPUTS, WRITABLE_ROOTS
from cubicle.prompt.workspace import Workspace
from cubicle.tools.base import Call
from cubicle.tools.registry import Registry
from tests.support.service import Service

TEST = Chat("test")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def change(service: Service, tool: str, **arguments: Any) -> tuple[str, ChangedFile]:
    """Call the tool; the call's id, and what Activity says of the file."""
    registry = Registry.build(Workspace(service.fleet), service.settings)
    answer = await registry.run(registry.find(tool), Call(Caller(TEST)), arguments)
    assert not answer.error, answer.text
    async for event in registry.activity.follow(TEST):
        if event is not None and event.fields["type"] == "end":
            return event.fields["id"], event.fields["files"][0]
    raise AssertionError("the call did not end")


async def undo(service: Service, id: str, *, redo: bool = False) -> int | None:
    async with service.fleet.lease(TEST) as machine:
        return (await machine.undo(id, redo=redo, roots=WRITABLE_ROOTS)).size


async def refused(service: Service, id: str, *, redo: bool = False) -> ErrorCode:
    with pytest.raises(MachineError) as error:
        await undo(service, id, redo=redo)
    return error.value.code


@pytest.mark.parametrize("folder", [HOME, f"{HOME}/deep/er", OUTPUTS])
async def test_an_overwritten_file_comes_back_and_goes_again(service: Service, folder: str) -> None:
    path = f"{folder}/note.txt"
    await service.call("create_file", {"path": path, "content": "one\ntwo\nthree\n"})
    await service.bash(f"chmod 600 {path}")
    id, file = await change(service, "create_file", path=path, content="one\n2\nthree\n")
    assert (file["before"], file["after"]) == (digest(b"one\ntwo\nthree\n"), digest(b"one\n2\nthree\n"))
    assert (file["size_before"], file["size_after"], file["kept"], file["line"]) == (14, 12, True, 1)
    assert (file["text_before"], file["text_after"]) == ("one\ntwo\nthree\n", "one\n2\nthree\n")
    for _ in range(2):
        assert await undo(service, id) == 14
        assert await service.bash(f"cat {path}; stat -c %u:%a {path}") == "one\ntwo\nthree\n1000:600\n"
        assert await refused(service, id) == ErrorCode.EXISTS
        assert await undo(service, id, redo=True) == 12
        assert await service.bash(f"cat {path}; stat -c %h:%u:%a {path}") == "one\n2\nthree\n1:1000:600\n"
        assert await refused(service, id, redo=True) == ErrorCode.EXISTS


async def kept_side(service: Service, id: str) -> tuple[str, bytes]:
    """What is kept of a change, and of which file it is."""
    async with service.fleet.lease(TEST) as machine, machine.read("/", roots=WRITABLE_ROOTS, kept=id) as reader:
        return reader.stat.path, b"".join([chunk async for chunk in reader])


async def test_the_kept_side_of_a_change_can_be_read_whole(service: Service) -> None:
    path, old = f"{HOME}/long.txt", "".join(f"line {n}\n" for n in range(5_000))
    new = old.replace("line 7\n", "seven\n")
    await service.call("create_file", {"path": path, "content": old})
    id, _ = await change(service, "create_file", path=path, content=new)
    assert await kept_side(service, id) == (path, old.encode())
    await undo(service, id)
    assert await kept_side(service, id) == (path, new.encode())
    for other in ("nobody", "../kept", ""):
        with pytest.raises(MachineError) as error:
            await kept_side(service, other)
        assert error.value.code is ErrorCode.NOT_KEPT


async def test_a_new_file_goes_and_comes_again(service: Service) -> None:
    path = f"{HOME}/new/file.txt"
    id, file = await change(service, "create_file", path=path, content="new")
    assert (file["before"], file["after"], file["kept"]) == (None, digest(b"new"), True)
    assert await undo(service, id) is None
    assert await service.bash(f"ls -A {HOME}/new") == "(no output)"
    assert await undo(service, id, redo=True) == 3
    assert await service.bash(f"cat {path}; stat -c %u:%h {path}") == "new1000:1\n"
    await service.bash(f"rm {path}")
    assert await refused(service, id) == ErrorCode.EXISTS
    await service.bash(f"rm -r {HOME}/new")
    assert await refused(service, id) == ErrorCode.CHANGED


async def test_a_replaced_text_comes_back(service: Service) -> None:
    path = f"{HOME}/long.py"
    lines = [f"line {n}\n" for n in range(1, 101)]
    await service.call("create_file", {"path": path, "content": "".join(lines)})
    id, file = await change(service, "str_replace", path=path, old_str="line 50\n", new_str="line fifty\n")
    assert file["line"] == 47
    assert file["text_before"] == "".join(lines[46:53]).rstrip("\n")
    assert file["text_after"] == "".join([*lines[46:49], "line fifty\n", *lines[50:53]]).rstrip("\n")
    assert await undo(service, id) == file["size_before"]
    assert await service.bash(f"sha256sum < {path}") == f"{digest(''.join(lines).encode())}  -\n"


async def test_changes_are_undone_in_turn_and_not_out_of_it(service: Service) -> None:
    path = f"{HOME}/turns.txt"
    ids = [(await change(service, "create_file", path=path, content=text))[0] for text in ("a", "b", "c")]
    assert await refused(service, ids[1]) == ErrorCode.CHANGED
    assert [await undo(service, id) for id in reversed(ids)] == [1, 1, None]


@pytest.mark.parametrize(
    "command",
    [
        "echo more >> {path}",
        "rm {path}",
        "rm {path}; mkdir {path}",
        "rm {path}; mkfifo {path}",
        "mv {path} {path}.old; ln -s {path}.old {path}",
    ],
)
async def test_a_file_that_was_changed_since_stays_as_it_is(service: Service, command: str) -> None:
    path = f"{HOME}/changed.txt"
    await service.bash(f"rm -rf {path}*; echo first > {path}")
    id, _ = await change(service, "create_file", path=path, content="second")
    await service.bash(command.format(path=path))
    before = await service.bash(f"ls -lid {path}*; md5sum {path}.old || true")
    assert await refused(service, id) == ErrorCode.CHANGED
    assert await service.bash(f"ls -lid {path}*; md5sum {path}.old || true") == before


async def test_what_a_program_changes_through_an_open_file_is_not_put_back(service: Service) -> None:
    """The memory driver has the home on a mount of its own, so a copy was kept; tests/guest has the link."""
    path = f"{HOME}/held.txt"
    await service.bash(f"echo first > {path}; ln -f {path} {path}.other")
    id, _ = await change(service, "create_file", path=path, content="second")
    await service.bash(f"echo sly >> {path}.other")
    assert await undo(service, id) == 6
    assert await service.bash(f"cat {path}") == "first\n"


async def test_nothing_of_what_is_kept_can_be_reached(service: Service) -> None:
    path = f"{HOME}/secret.txt"
    await service.call("create_file", {"path": path, "content": "one"})
    await change(service, "create_file", path=path, content="two")
    assert "Permission denied" in await service.bash("ls /run/cubicle/kept 2>&1; true")
    result = await service.call("view", {"path": "/run/cubicle/kept"})
    assert result["isError"]
    async with service.fleet.lease(TEST) as machine:
        names = [entry.path async for entry in machine.list(HOME, hidden=True)]
    assert "secret.txt" in names
    assert not [name for name in names if name.startswith(".cubicle")]


async def test_what_is_kept_is_in_nobodys_way(service: Service) -> None:
    for folder in (HOME, OUTPUTS):
        await service.call("create_file", {"path": f"{folder}/result.txt", "content": "one"})
        await service.call("create_file", {"path": f"{folder}/result.txt", "content": "two"})
        said = await service.bash(
            f"{{ grep -r one {folder}; cp -r {folder} /tmp/copied; find {folder}; }} 2>&1 >/dev/null"
        )
        assert said == "(no output)"


async def test_large_and_binary_files_are_kept_and_shown_by_size(service: Service) -> None:
    path = f"{HOME}/large.bin"
    await service.bash(f"head -c 60000000 /dev/zero > {path}")
    id, file = await change(service, "create_file", path=path, content="small")
    assert (file["size_before"], file["size_after"], file["kept"]) == (60_000_000, 5, True)
    assert (file["text_before"], file["text_after"]) == (None, None)
    assert await undo(service, id) == 60_000_000
    await service.bash(f"printf 'a\\0b' > {HOME}/small.bin")
    _, file = await change(service, "create_file", path=f"{HOME}/small.bin", content="text")
    assert file["text_before"] is None


async def test_only_the_latest_changes_are_kept(service: Service) -> None:
    path = f"{HOME}/many.txt"
    first, _ = await change(service, "create_file", path=path, content="0")
    for number in range(kept_files.MAX_FILES + 1):
        result = await service.call("create_file", {"path": path, "content": str(number + 1)})
        assert not result["isError"]
    last, _ = await change(service, "create_file", path=path, content="last")
    assert await refused(service, first) == ErrorCode.NOT_KEPT
    assert await undo(service, last) == 3


async def test_only_so_many_bytes_are_kept(service: Service) -> None:
    path = f"{HOME}/heavy.bin"
    ids = []
    for _ in range(3):
        await service.bash(f"head -c 40000000 /dev/zero > {path}")
        ids.append((await change(service, "create_file", path=path, content="light"))[0])
        await service.bash(f"rm {path}")
    assert await refused(service, ids[0]) == ErrorCode.NOT_KEPT
    await service.bash(f"printf light > {path}")
    assert await undo(service, ids[1]) == 40_000_000


async def test_two_at_once_do_it_once(service: Service) -> None:
    path = f"{HOME}/twice.txt"
    await service.call("create_file", {"path": path, "content": "one"})
    id, _ = await change(service, "create_file", path=path, content="two!")
    done = await asyncio.gather(*(undo(service, id) for _ in range(5)), return_exceptions=True)
    assert sorted(map(str, done)).count("3") == 1
    assert {one.code for one in done if isinstance(one, MachineError)} == {ErrorCode.EXISTS}
    assert await service.bash(f"cat {path}") == "one"


@pytest.mark.parametrize("id", ["", "nothing", "../../etc/passwd", "a" * 5000, "\0"])
async def test_an_id_of_nothing_is_refused(service: Service, id: str) -> None:
    assert await refused(service, id) == ErrorCode.NOT_KEPT
