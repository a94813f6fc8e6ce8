"""Files in a sandbox, on every driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cubicle.machine.errors import MachineError
from cubicle.machine.machine import HOME, READABLE_ROOTS, UPLOADS, WRITABLE_ROOTS, Machine
from cubicle.machine.passed_file import PassedFile
from tests.conftest import IN_A_HURRY

MANY = 4000 if IN_A_HURRY else 20_000
"""Names that no single message could hold."""
PARTS, PART = 100 if IN_A_HURRY else 400, 250_000
"""A file that no buffer on its way could hold."""


async def code(awaitable: object) -> str:
    with pytest.raises(MachineError) as no:
        await awaitable  # type: ignore[misc]
    return no.value.code


async def test_what_is_written_is_read(machine: Machine) -> None:
    content = bytes(range(256)) * 10_000
    written = await machine.write(f"{HOME}/a/b/c.bin", content)
    assert (written.created, written.size, written.path) == (True, len(content), f"{HOME}/a/b/c.bin")
    assert await machine.read_bytes(f"{HOME}/a/b/c.bin", limit=10_000_000) == content
    _, who = await machine.output("stat -c '%U %a' ~/a/b/c.bin ~/a/b; stat -c %u ~/a/b/c.bin")
    assert who.decode().splitlines()[-1] == "1000"


async def test_overwriting_is_told_and_keeps_the_mode(machine: Machine) -> None:
    await machine.write(f"{HOME}/run.sh", b"#!/bin/sh\n")
    await machine.output("chmod 755 ~/run.sh")
    assert not (await machine.write(f"{HOME}/run.sh", b"#!/bin/sh\necho\n")).created
    assert (await machine.stat(f"{HOME}/run.sh")).mode == 0o755


async def test_a_part_of_a_file_can_be_read(machine: Machine) -> None:
    await machine.write(f"{HOME}/x", b"0123456789")
    async with machine.read(f"{HOME}/x", offset=3, length=4) as reader:
        assert reader.stat.size == 10
        assert b"".join([chunk async for chunk in reader]) == b"3456"


async def test_a_file_that_is_handed_over_is_the_one_that_is_sent(machine: Machine) -> None:
    """Where the guest can: gVisor's files are none of the host's kernel, and no descriptor passes an exec stream."""
    content = bytes(range(256)) * 10_000
    path = f"{HOME}/großes Bild.bin"
    await machine.write(path, content)
    for offset, length in ((0, None), (5, 1_500_000), (len(content) - 5, 100), (len(content) + 1, None)):
        async with (
            machine.read(path, offset=offset, length=length, roots=READABLE_ROOTS) as sent,
            machine.read(path, offset=offset, length=length, roots=READABLE_ROOTS, straight=True) as handed,
        ):
            assert isinstance(handed, PassedFile) is machine._hands
            assert (handed.stat, handed.length) == (sent.stat, sent.length)
            wanted = content[offset:][:length]
            assert b"".join([chunk async for chunk in handed]) == wanted
            assert b"".join([chunk async for chunk in sent]) == wanted


async def test_a_handed_file_is_one_version_while_it_is_replaced(machine: Machine) -> None:
    await machine.write(f"{HOME}/big", b"a" * 8_000_000)
    async with machine.read(f"{HOME}/big", straight=True) as reader:
        chunks = aiter(reader)
        first = await anext(chunks)
        await machine.write(f"{HOME}/big", b"b" * 8_000_000)
        await machine.output("rm ~/big")
        rest = b"".join([chunk async for chunk in chunks])
    assert first + rest == b"a" * 8_000_000


async def test_what_cannot_be_read_is_not_handed_over_either(machine: Machine) -> None:
    await machine.output("mkfifo ~/fifo; mkdir ~/folder; ln -s /dev/zero ~/zero; ln -s /etc/passwd ~/passwd")
    hands = machine._hands
    for name, why in (
        ("fifo", "not-regular"),
        ("folder", "is-directory"),
        ("zero", "outside"),
        ("passwd", "outside"),
        ("none", "not-found"),
    ):
        with pytest.raises(MachineError) as no:
            async with machine.read(f"{HOME}/{name}", roots=(HOME,), straight=True):
                pass
        assert no.value.code == why, name
    assert machine._hands is hands  # to say no is no breach of the rules
    long = "/".join(["\udcff" * 255] * 15)
    await machine.write(f"{HOME}/{long}", b"x")
    async with machine.read(f"{HOME}/{long}", straight=True) as reader:
        assert isinstance(reader, PassedFile) is hands


async def test_a_write_that_breaks_off_leaves_the_old_file_and_no_rest(machine: Machine) -> None:
    await machine.write(f"{HOME}/f", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"new" * 1000
        raise ConnectionError("the uploader went away")

    with pytest.raises(ConnectionError):
        await machine.write(f"{HOME}/f", broken())
    await machine.ping()
    assert await machine.read_bytes(f"{HOME}/f", limit=10) == b"old"
    assert (await machine.output("ls -A ~ | grep -c cubicle-tmp"))[1] == b"0\n"


async def test_a_reader_sees_one_version_while_the_file_is_replaced(machine: Machine) -> None:
    await machine.write(f"{HOME}/big", b"a" * 8_000_000)
    async with machine.read(f"{HOME}/big") as reader:
        chunks = aiter(reader)
        first = await anext(chunks)
        await machine.write(f"{HOME}/big", b"b" * 8_000_000)
        rest = b"".join([chunk async for chunk in chunks])
    assert set(first + rest) == {ord("a")}


async def test_an_edit_replaces_the_one_occurrence(machine: Machine) -> None:
    await machine.write(f"{HOME}/t", "eins\nzwei\ndrei ü\n".encode())
    edited = await machine.edit(f"{HOME}/t", "drei ü", "vier")
    assert edited.line == 3
    assert await machine.read_bytes(f"{HOME}/t", limit=100) == b"eins\nzwei\nvier\n"


async def test_an_edit_without_a_match_or_with_several_changes_nothing(machine: Machine) -> None:
    await machine.write(f"{HOME}/t", b"aaa\nb\n")
    assert await code(machine.edit(f"{HOME}/t", "zzz", "x")) == "no-match"
    assert await code(machine.edit(f"{HOME}/t", "aa", "x")) == "many-matches"
    assert await code(machine.edit(f"{HOME}/t", "", "x")) == "no-match"
    assert await machine.read_bytes(f"{HOME}/t", limit=100) == b"aaa\nb\n"


async def test_paths_outside_the_roots_are_refused_links_resolved_first(machine: Machine) -> None:
    await machine.output("ln -s /etc ~/etc; ln -s /etc/passwd ~/passwd; ln -s ../../tmp ~/t")
    for path in ("/etc/passwd", f"{HOME}/passwd", f"{HOME}/etc/passwd", f"{HOME}/../../etc/passwd", "/proc/1/environ"):
        assert await code(machine.read_bytes(path, limit=10**6, roots=READABLE_ROOTS)) == "outside", path
        assert await code(machine.write(path, b"x", roots=WRITABLE_ROOTS)) == "outside", path
    await machine.write(f"{HOME}/t/fine", b"1", roots=WRITABLE_ROOTS)
    assert await machine.read_bytes("/tmp/fine", limit=10, roots=READABLE_ROOTS) == b"1"


async def test_what_is_no_plain_file_neither_hangs_nor_answers(machine: Machine) -> None:
    await machine.output("mkfifo ~/fifo; mkdir ~/folder; ln -s /dev/zero ~/zero; ln -s ~/loop ~/loop")
    assert await code(machine.read_bytes(f"{HOME}/fifo", limit=10)) == "not-regular"
    assert await code(machine.read_bytes(f"{HOME}/folder", limit=10)) == "is-directory"
    assert await code(machine.read_bytes(f"{HOME}/zero", limit=10)) == "not-regular"
    assert await code(machine.read_bytes(f"{HOME}/none", limit=10)) == "not-found"
    assert await code(machine.read_bytes(f"{HOME}/loop", limit=10)) in ("bad-name", "not-found")
    assert await code(machine.write(f"{HOME}/folder", b"")) == "is-directory"
    assert await code(machine.write(f"{HOME}/{'n' * 256}", b"")) == "bad-name"


async def test_the_guest_reads_files_as_the_assistant(machine: Machine) -> None:
    assert await code(machine.read_bytes("/etc/shadow", limit=10**6)) == "permission"
    assert await code(machine.write("/etc/new", b"")) in ("permission", "read-only")


async def test_uploads_are_written_by_the_service_and_read_only_for_commands(machine: Machine) -> None:
    written = await machine.write(f"{UPLOADS}/sub/ü.txt", b"up", as_root=True)
    assert written.path == f"{UPLOADS}/sub/ü.txt"
    assert (await machine.output(f"cat {UPLOADS}/sub/*"))[1] == b"up"
    for attempt in (
        f"echo x > {UPLOADS}/y",
        f"rm {UPLOADS}/sub/*",
        f"mv {UPLOADS}/sub {UPLOADS}/z",
        f"chmod 777 {UPLOADS}",
    ):
        assert (await machine.output(attempt))[0].code != 0
    assert await code(machine.write(f"{UPLOADS}/y", b"")) in ("permission", "read-only")
    await machine.remove(f"{UPLOADS}/sub/ü.txt", as_root=True)
    assert (await machine.output(f"ls {UPLOADS}/sub"))[1] == b""


async def test_skills_are_read_only_for_commands(machine: Machine) -> None:
    await machine.write("/mnt/skills/public/x/SKILL.md", b"skill", as_root=True)
    assert (await machine.output("cat /mnt/skills/public/x/SKILL.md"))[1] == b"skill"
    assert (await machine.output("echo >> /mnt/skills/public/x/SKILL.md"))[0].code != 0
    await machine.remove("/mnt/skills/public", recursive=True, as_root=True)
    assert (await machine.output("ls /mnt/skills"))[1] == b""


async def test_a_listing_is_sorted_bounded_and_follows_no_link(machine: Machine) -> None:
    await machine.output("mkdir -p ~/l/b/c; touch ~/l/a ~/l/b/x ~/l/.hidden ~/l/b/c/deep; ln -s / ~/l/root")
    found = [(entry.path, entry.kind) async for entry in machine.list(f"{HOME}/l", depth=2)]
    assert found == [("a", "file"), ("b", "directory"), ("b/c", "directory"), ("b/x", "file"), ("root", "symlink")]
    assert ".hidden" in [entry.path async for entry in machine.list(f"{HOME}/l", hidden=True)]
    assert len([e async for e in machine.list("/usr", depth=9, limit=500)]) == 500
    assert await code(anext(machine.list(f"{HOME}/l/a"))) == "not-directory"


async def test_a_large_listing_streams(machine: Machine) -> None:
    await machine.output(f"mkdir ~/many; cd ~/many; seq {MANY} | xargs touch")
    names = [entry.path async for entry in machine.list(f"{HOME}/many", limit=100_000)]
    assert len(names) == MANY
    assert names == sorted(names)


async def test_hostile_names_come_through_whole(machine: Machine) -> None:
    await machine.output("mkdir ~/h; cd ~/h; touch $'new\\nline' $'bad\\xff' \"quote'\\\"\" ' '")
    names = [entry.path async for entry in machine.list(f"{HOME}/h")]
    assert sorted(names) == sorted([" ", "bad\udcff", "new\nline", "quote'\""])
    for name in names:
        assert await machine.read_bytes(f"{HOME}/h/{name}", limit=1) == b""


async def test_relative_and_nul_paths_are_refused(machine: Machine) -> None:
    assert await code(machine.read_bytes("relative", limit=1)) == "bad-request"
    assert await code(machine.read_bytes("/tmp/a\0b", limit=1)) == "bad-name"


async def test_a_big_file_passes_in_both_directions_while_others_work(machine: Machine) -> None:
    served = asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        for part in range(PARTS):
            if part == PARTS * 3 // 4:  # the file is not whole before the others had their turn
                await served.wait()
            yield b"z" * PART

    async def others() -> None:
        async with asyncio.timeout(150):
            for _ in range(20):
                await machine.output("true")
        served.set()

    written, _ = await asyncio.gather(machine.write(f"{HOME}/huge", content()), others())
    assert written.size == PARTS * PART
    total = 0
    async with machine.read(f"{HOME}/huge") as reader:
        async for chunk in reader:
            total += len(chunk)
    assert total == PARTS * PART


async def test_a_synced_write_is_as_any_other_and_fails_as_any_other(machine: Machine) -> None:
    written = await machine.write(f"{HOME}/deep/a.txt", b"one", sync=True)
    assert (written.created, written.size) == (True, 3)
    assert not (await machine.write(f"{HOME}/deep/a.txt", b"three", sync=True)).created
    assert await machine.read_bytes(f"{HOME}/deep/a.txt", limit=100) == b"three"
    _, found = await machine.output("ls -A ~/deep; mkdir ~/deep/folder; chmod a-w ~/deep")
    assert found == b"a.txt\n"
    assert await code(machine.write(f"{HOME}/deep/folder", b"x", sync=True)) == "is-directory"
    await machine.output("chmod u+w ~/deep; chmod a-r ~/deep")
    assert (await machine.write(f"{HOME}/deep/b.txt", b"in a folder that is not read", sync=True)).created


async def test_edits_of_one_file_at_once_all_stay(machine: Machine) -> None:
    words = [f"word{number:02}." for number in range(20)]
    await machine.write(f"{HOME}/words", "\n".join(words).encode(), sync=True)
    await asyncio.gather(*(machine.edit(f"{HOME}/words", word, word.upper()) for word in words))
    found = await machine.read_bytes(f"{HOME}/words", limit=10_000)
    assert found.decode() == "\n".join(words).upper()


async def test_a_write_that_nobody_waits_for_any_more_leaves_nothing_beside_it(machine: Machine) -> None:
    for number in range(10):
        task = asyncio.create_task(machine.write(f"{HOME}/given-up/{number}", b"x" * 100_000, sync=True))
        await asyncio.sleep(0.002 * number)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(30):
        while (await machine.output("ls -A ~/given-up | grep -c cubicle-tmp"))[1] != b"0\n":
            await asyncio.sleep(0.05)
    assert (await machine.output("echo here"))[1] == b"here\n"
