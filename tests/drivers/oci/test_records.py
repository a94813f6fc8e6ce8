"""Damaged records: one bad record concerns one chat, and nothing that may be somebody's is ever removed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cubicle.drivers.oci.driver import OciDriver
from cubicle.drivers.oci.images_in_use import sandboxes_by_image
from cubicle.drivers.oci.records import Meta, OciHome, OciRecords
from cubicle.drivers.oci.repair import repair
from cubicle.images.users import leave_note, users
from cubicle.machine.errors import OwnerHasSandbox, SandboxError
from cubicle.sandbox.driver import State
from cubicle.sandbox.lost_found import LostFound
from cubicle.sandbox.warm_pool import connect
from tests.conftest import IN_A_HURRY
from tests.drivers.oci.conftest import said, state_of

pytestmark = [pytest.mark.anyio, pytest.mark.oci]

TODAY = Meta("f" * 64, 64 * 1024**2)
Damage = Callable[[Path], object]


def folder(path: Path) -> None:
    path.mkdir()
    (path / "inner").write_text("somebody's")


def cyclic(path: Path) -> None:
    path.symlink_to(path.name)


def fifo(path: Path) -> None:
    os.mkfifo(path)


DAMAGES: dict[str, Damage] = {
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "binary": lambda path: path.write_bytes(os.urandom(4096)),
    "cut-short": lambda path: path.write_text('{"image": "ab'),
    "a-list": lambda path: path.write_text("[1, 2]"),
    "a-number": lambda path: path.write_text("7"),
    "null": lambda path: path.write_text("null"),
    "other-shape": lambda path: path.write_text('{"image": ["x"], "disk_bytes": "1", "process": 3, "version": 1}'),
    "wrong-types": lambda path: path.write_text(
        json.dumps({"image": 5, "disk_bytes": -1, "process": {"pid": "1", "started": None, "boot": []}, "runtime": {}})
    ),
    "nested": lambda path: path.write_text("[" * 100_000),
    "huge": lambda path: path.write_bytes(b'{"image": "' + b"x" * 3_000_000 + b'"}'),
    "not-a-version": lambda path: path.write_text('{"version": "two"}'),
    "a-folder": folder,
    "dangling-link": lambda path: path.symlink_to("nowhere"),
    "cyclic-link": cyclic,
    "device-link": lambda path: path.symlink_to("/dev/zero"),
    "fifo": fifo,
}
OF_A_SANDBOX = ("meta.json", "run.json", "failed", "owner", "loop", "pid", "guest.sock", "bundle", "bundle/config.json")
OF_THE_SERVICE = ("trials.json", "lock", "making", "templates", "guest")
STARTED = ("empty", "a-folder", "cyclic-link")


def damage(path: Path, how: Damage) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    how(path)


async def test_every_damage_of_every_record_of_a_sandbox(make_driver, tmp_path):
    """A chat for each: none is lost, and one that is well goes on beside them."""
    places = [*(f"sandboxes/{{name}}/{record}" for record in OF_A_SANDBOX), "owners/{owner}"]
    table = [(place, kind) for place in places for kind in DAMAGES]
    data = tmp_path / "data"
    async with make_driver(keep=True) as driver:
        await driver.start("well", "well")
        await said(driver, "well", "echo well > ~/note")
        for number, (place, kind) in enumerate(table):
            home = driver._records.home(f"s{number}")
            await asyncio.to_thread(driver._assembly._make, home.name)
            await asyncio.to_thread(driver._records.bind, home, f"o{number}")
            damage(data / place.format(name=home.name, owner=f"o{number}"), DAMAGES[kind])
        during = {one.name: one.owner for one in await driver.list()}
        assert during["well"] == "well"
    async with make_driver() as driver:
        seen = {one.name: one.owner for one in await driver.list()}
        lost = [row for number, row in enumerate(table) if seen.get(f"s{number}") != f"o{number}"]
        assert lost == []
        assert await said(driver, "well", "cat ~/note") == "well"
        for number, (_, kind) in enumerate(table):
            if kind in STARTED and not (IN_A_HURRY and number % 3):
                await driver.start(f"s{number}", f"o{number}")
                assert await said(driver, f"s{number}", "echo here") == "here"
                await driver.stop(f"s{number}")


@pytest.mark.parametrize("place", OF_THE_SERVICE)
async def test_every_damage_of_what_the_driver_keeps_for_all(make_driver, tmp_path, place):
    async with make_driver(keep=True) as driver:
        await driver.start("one", "first")
        await said(driver, "one", "echo kept > ~/note; sync ~/note")
        await driver.stop("one")
    for kind in ("empty", "binary", "nested", *STARTED):
        damage(tmp_path / "data" / place, DAMAGES[kind])
        async with make_driver(keep=True) as driver:
            assert (await state_of(driver, "one")).owner == "first"
            await driver.start("two", None)
            assert await said(driver, "two", "echo here") == "here"
            await driver.delete("two")
    async with make_driver() as driver:
        await driver.start("one", "first")
        assert await said(driver, "one", "cat ~/note") == "kept"


@pytest.mark.parametrize(
    "kind", ["empty", "a-list", "wrong-types", "nested", "huge", "a-folder", "cyclic-link", "fifo"]
)
def test_another_data_dir_is_only_read(tmp_path, kind):
    """Whatever it holds, the images of the host stay usable."""
    data, other, images = tmp_path / "data", tmp_path / "other", tmp_path / "images"
    for folder in (data, other):
        records = OciRecords(folder)
        records.make_folders()
        home_of(records, "a", "chat")
    leave_note(images, other, {"x"})
    damage(other / "sandboxes/a/meta.json", DAMAGES[kind])
    damage(other / "serving", DAMAGES[kind])
    damage(images / "users/damaged", DAMAGES[kind])
    leave_note(images, data, {TODAY.image})
    found = {user.data_dir: user for user in users(images, sandboxes_by_image, data)}
    assert found[data].sandboxes[TODAY.image] == 1
    assert found[other].unreadable == 1


async def test_a_lost_meta_is_written_anew_while_the_service_runs(driver, tmp_path):
    await driver.start("one", "first")
    await said(driver, "one", "echo kept > ~/note")
    await driver.stop("one")
    for content in ("", "{}", None):
        path = tmp_path / "data/sandboxes/one/meta.json"
        path.unlink()
        if content is not None:
            path.write_text(content)
        assert (await state_of(driver, "one")).owner == "first"
        await driver.start("one", "first")
        assert await said(driver, "one", "cat ~/note") == "kept"
        await driver.stop("one")
    assert LostFound(tmp_path / "data").entries() == []


async def test_a_wake_that_fails_removes_nothing(driver, tmp_path, monkeypatch):
    await driver.start("one", "first")
    await said(driver, "one", "echo kept > ~/note")
    await driver.stop("one")
    (tmp_path / "data/sandboxes/one/meta.json").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr("cubicle.drivers.oci.mounts.overlay", _refuse)
        with pytest.raises(SandboxError):
            await driver.start("one", "first")
    await driver.start("one", "first")
    assert await said(driver, "one", "cat ~/note") == "kept"


def _refuse(*args: object) -> None:
    raise OSError(5, "Input/output error")


async def test_a_damaged_run_record_of_a_live_sandbox_does_not_start_it_twice(make_driver, tmp_path):
    async with make_driver(keep=True) as driver:
        await driver.start("one", "first")
        await said(driver, "one", "echo kept > ~/note")
        (tmp_path / "data/sandboxes/one/run.json").write_text("{")
        await driver.start("one", "first")
        assert await said(driver, "one", "cat ~/note") == "kept"
        (tmp_path / "data/sandboxes/one/run.json").write_text("[]")
    async with make_driver() as driver:
        assert (await state_of(driver, "one")).state is State.STOPPED
        await driver.start("one", "first")
        assert await said(driver, "one", "cat ~/note") == "kept"


async def test_a_record_of_the_next_version_is_read_and_one_of_later_ones_is_left_alone(make_driver, tmp_path):
    path = tmp_path / "data/sandboxes/one/meta.json"
    async with make_driver(keep=True) as driver:
        await driver.start("one", "first")
        await said(driver, "one", "echo kept > ~/note")
        await driver.stop("one")
        known = json.loads(path.read_text())
        path.write_text(json.dumps(known | {"version": 2, "unknown": {"to": "us"}}))
        await driver.start("one", "first")
        assert await said(driver, "one", "cat ~/note") == "kept"
        await driver.stop("one")
    later = json.dumps({"version": 9, "image": {"of": "another shape"}})
    path.write_text(later)
    async with make_driver(keep=True) as driver:
        seen = await state_of(driver, "one")
        assert (seen.owner, seen.state) == ("first", State.FAILED)
        with pytest.raises(SandboxError, match="newer version"):
            await driver.start("one", "first")
        assert path.read_text() == later
    path.write_text(json.dumps(known))
    async with make_driver() as driver:
        await driver.start("one", "first")
        assert await said(driver, "one", "cat ~/note") == "kept"


async def test_rescue_gives_a_sandbox_back(make_driver, tmp_path):
    data = tmp_path / "data"
    async with make_driver(keep=True) as driver:
        await driver.start("one", "first")
        await said(driver, "one", "echo kept > ~/note")
        await driver.stop("one")
    for path in ("owners/first", "sandboxes/one/owner"):
        (data / path).unlink()
        (data / path).mkdir()
    (data / "sandboxes/one/meta.json").unlink()
    async with make_driver() as driver:
        assert await driver.list() == []
        (lost,) = [entry for entry in LostFound(data).entries() if entry.is_sandbox]
        await driver.start("other", "second")
        with pytest.raises(SandboxError, match="has a sandbox already"):
            await driver.rescue(lost, "second")
        assert await driver.rescue(lost, "first") == "one"
        assert [entry for entry in LostFound(data).entries() if entry.is_sandbox] == []
        with pytest.raises(OwnerHasSandbox):
            await driver.start("third", "first")
        await driver.start("one", "first")
        assert await said(driver, "one", "cat ~/note") == "kept"


# ---- records alone, without a sandbox


def home_of(records: OciRecords, name: str, owner: str | None = None, used: float = 1000) -> OciHome:
    draft = records.draft(name)
    (draft.path / "disk.img").write_bytes(name.encode())
    os.utime(draft.path / "disk.img", (used, used))
    draft.save_meta(TODAY)
    home = records.publish(draft)
    if owner is not None:
        records.bind(home, owner)
    return home


@pytest.fixture
def records(tmp_path: Path) -> OciRecords:
    records = OciRecords(tmp_path)
    records.make_folders()
    return records


def owners(records: OciRecords) -> dict[str, str]:
    return {
        name: records.owner_of(OciHome(records.sandboxes / name), records.owned()) or "" for name in _names(records)
    }


def _names(records: OciRecords) -> list[str]:
    return [home.name for home in records.homes()]


def disks(records: OciRecords) -> set[str]:
    """Every disk that is still anywhere."""
    return {path.read_text() for path in records.root.rglob("disk.img")}


@pytest.mark.parametrize(("first", "second", "winner"), [(2000, 1000, "a"), (1000, 2000, "b")])
def test_of_two_homes_of_a_chat_the_one_used_last_stays(records, first, second, winner):
    home_of(records, "a", "chat", first)
    home_of(records, "b", None, second)
    (records.sandboxes / "b" / "owner").symlink_to("chat")  # as an older version left it
    repair(records, TODAY)
    assert owners(records) == {winner: "chat"}
    (lost,) = records.lost.entries()
    assert (lost.owner, lost.is_sandbox) == ("chat", True)
    assert disks(records) == {"a", "b"}


def test_links_are_told_from_each_other(records):
    home_of(records, "a", "chat-a")
    home_of(records, "b", "chat-b")
    (records.owners / "chat-a").unlink()
    (records.sandboxes / "b" / "owner").unlink()
    repair(records, TODAY)
    assert owners(records) == {"a": "chat-a", "b": "chat-b"}
    assert os.readlink(records.owners / "chat-a") == "a"
    assert os.readlink(records.sandboxes / "b" / "owner") == "chat-b"


def test_two_owners_of_one_home(records):
    home_of(records, "a", "chat")
    (records.owners / "another").symlink_to("a")
    repair(records, TODAY)
    assert owners(records) == {"a": "chat"}
    assert os.listdir(records.owners) == ["chat"]


def test_what_nobody_was_given_is_removed_and_what_may_be_somebodys_is_not(records):
    (records.making / "half").mkdir()
    (records.making / "half" / "disk.img").write_text("half")
    (records.sandboxes / "shell").mkdir()
    (records.owners / "dangling").symlink_to("gone")
    unknown = home_of(records, "unknown")
    (unknown.path / "meta.json").write_text("")
    repair(records, TODAY)
    assert disks(records) == {"unknown"}
    assert (os.listdir(records.making), _names(records), os.listdir(records.owners)) == ([], [], [])
    (lost,) = records.lost.entries()
    assert "it is empty" in lost.why


def test_what_is_in_the_way_of_a_folder_is_kept(tmp_path):
    for name in ("sandboxes", "owners", "making"):
        (tmp_path / name).write_text(name)
    records = OciRecords(tmp_path)
    records.make_folders()
    home_of(records, "a", "chat")
    assert owners(records) == {"a": "chat"}
    kept = [path.read_text() for path in tmp_path.iterdir() if ".bad-" in path.name]
    assert sorted(kept) == ["making", "owners", "sandboxes"]


def test_a_binding_is_one_step(records, monkeypatch):
    """Whatever fails in the middle: the chat has one home or none."""
    home_of(records, "a")
    symlink = os.symlink
    for fails_at in range(3):
        calls = iter(range(10))

        def short(target, path, calls=calls, fails_at=fails_at):
            if next(calls) == fails_at:
                raise OSError(28, "No space left on device")
            symlink(target, path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "symlink", short)
            try:
                records.bind(OciHome(records.sandboxes / "a"), "chat")
            except OSError:
                assert owners(records) == {"a": ""}
                continue
        assert owners(records) == {"a": "chat"}
    home_of(records, "b")
    with pytest.raises(OwnerHasSandbox) as refused:
        records.bind(OciHome(records.sandboxes / "b"), "chat")
    assert refused.value.name == "a"
    assert owners(records) == {"a": "chat", "b": ""}


async def test_a_driver_says_which_sandbox_a_chat_has(driver: OciDriver):
    await driver.start("one", "first")
    await driver.start("two", None)
    with pytest.raises(OwnerHasSandbox) as refused:
        await driver.start("two", "first")
    assert refused.value.name == "one"
    machine = await connect(driver, "two")
    machine.close()
