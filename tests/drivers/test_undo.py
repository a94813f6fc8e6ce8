"""Changes of files are taken back on every driver, in the home and in the outputs, and nobody meets what is kept."""

from __future__ import annotations

import asyncio
import os

import pytest

from cubicle.machine.machine import HOME, OUTPUTS, WRITABLE_ROOTS, Machine
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.warm_pool import connect, new_name

LARGE = 20_000_000
_WALK = """
cd && for folder in ~ /mnt/user-data/outputs; do
  grep -rc one $folder; find $folder; ls -laR $folder >/dev/null; tar cf /dev/null -C $folder .
  rm -rf /tmp/copy; cp -r $folder /tmp/copy
done 2>&1 >/dev/null
"""
"""Prints what any of them complains about."""


async def change(machine: Machine, path: str, content: bytes, id: str) -> None:
    written = await machine.write(path, content, roots=WRITABLE_ROOTS, sync=True, keep=id)
    assert written.change is not None
    assert (written.change.kept, written.change.reason) == (True, "")


async def undo(machine: Machine, id: str, *, redo: bool = False) -> int | None:
    return (await machine.undo(id, redo=redo, roots=WRITABLE_ROOTS)).size


@pytest.mark.parametrize("folder", [HOME, OUTPUTS])
async def test_a_change_is_taken_back_and_made_again(machine: Machine, folder: str) -> None:
    path, new, changed = f"{folder}/a/note.txt", os.urandom(8).hex(), os.urandom(8).hex()
    await change(machine, path, b"one", new)
    await machine.output(f"chmod 640 {path}")
    await change(machine, path, b"two", changed)
    for _ in range(2):
        assert await undo(machine, changed) == 3
        _, seen = await machine.output(f"cat {path}; stat -c :%u:%g:%a {path}")
        assert seen.decode() == "one:1000:1000:640\n"
        assert await undo(machine, changed, redo=True) == 3
        assert await machine.read_bytes(path, limit=10) == b"two"
    await undo(machine, changed)
    assert await undo(machine, new) is None
    assert await undo(machine, new, redo=True) == 3
    _, seen = await machine.output(f"ls -A {folder}/a; stat -c %u {path}")
    assert seen.decode() == "note.txt\n1000\n"


@pytest.mark.parametrize("folder", [HOME, OUTPUTS])
async def test_a_large_file_is_taken_back(machine: Machine, folder: str) -> None:
    path, id = f"{folder}/large.bin", os.urandom(8).hex()
    _, made = await machine.output(f"head -c {LARGE} /dev/urandom > {path}; sha256sum < {path}")
    await change(machine, path, b"small", id)
    assert await undo(machine, id) == LARGE
    _, seen = await machine.output(f"sha256sum < {path}")
    assert seen == made


async def test_nobody_who_walks_his_folders_meets_what_is_kept(machine: Machine) -> None:
    for folder in (HOME, OUTPUTS):
        for content in (b"one", b"two"):
            await change(machine, f"{folder}/x.txt", content, os.urandom(8).hex())
    _, said = await machine.output(_WALK)
    assert said.decode() == ""
    _, said = await machine.output("ls /run/cubicle/kept /var/lib/cubicle/kept 2>&1; true")
    assert "one" not in said.decode()
    assert "denied" in said.decode()


async def test_what_is_kept_outlives_a_stop(driver: Driver) -> None:
    name = new_name()
    await driver.start(name, os.urandom(16).hex())
    machine = await connect(driver, name)
    for folder in (HOME, OUTPUTS):
        await machine.write(f"{folder}/x", b"one", sync=True)
        await change(machine, f"{folder}/x", b"two!", os.path.basename(folder))
    machine.close()
    await driver.stop(name)
    async with asyncio.timeout(120):
        await driver.start(name, None)
    machine = await connect(driver, name)
    for folder in (HOME, OUTPUTS):
        assert await undo(machine, os.path.basename(folder)) == 3
    machine.close()
