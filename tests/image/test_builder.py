"""Building: what a host needs, owners, what a failure says. The true build is tested by what it made: test_base.py."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cubicle.images import builder
from cubicle.images.store import (
    SUBUID_COUNT,
    SUBUID_START,
    BuildFailed,
    ImageStore,
    Recipe,
    ToolMissing,
    Variant,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@needs_root
def test_a_missing_tool_is_named_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "apt-get", "")
    program(tmp_path / "bin", "unshare", "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(builder, "KEYRING", tmp_path / "keyring.gpg")
    with pytest.raises(ToolMissing, match="run: apt-get install -y mmdebstrap debian-archive-keyring"):
        builder.check_host()


def test_a_user_without_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolMissing, match="sudo"):
        builder.check_host()


@needs_root
def test_owners_move_into_the_range_and_dangerous_bits_go(tmp_path: Path) -> None:
    root = tmp_path / "rootfs"
    (root / "home").mkdir(parents=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "su").write_text("x")
    (root / "home/mine").write_text("x")
    os.chown(root / "home/mine", 1000, 1001)
    (root / "su").chmod(0o6755)
    os.link(root / "su", root / "zu")
    (root / "away").symlink_to("/etc/passwd")
    os.mknod(root / "disk", 0o660 | stat.S_IFBLK, os.makedev(7, 200))
    host_owner = Path("/etc/passwd").stat().st_uid

    builder.shift_owners(root)
    builder.shift_owners(root)

    assert not (root / "disk").exists()
    assert ((root / "home/mine").stat().st_uid, (root / "home/mine").stat().st_gid) == (
        SUBUID_START + 1000,
        SUBUID_START + 1001,
    )
    assert (root / "su").stat().st_uid == (root / "zu").stat().st_uid == SUBUID_START
    assert stat.S_IMODE((root / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert (root / "away").lstat().st_uid == SUBUID_START
    assert Path("/etc/passwd").stat().st_uid == host_owner


def test_the_range_keeps_clear_of_negative_and_reserved_ids() -> None:
    assert SUBUID_START + SUBUID_COUNT < 0x7FFE_0000


@needs_root
def test_a_failed_build_says_where_the_log_is_and_keeps_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "mmdebstrap", 'echo "I: running apt-get update..."; echo "E: no such host"; exit 3')
    program(tmp_path / "bin", "apt-get", "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    store = ImageStore(tmp_path / "images")
    steps: list[str] = []
    with pytest.raises(BuildFailed, match="exit code 3") as caught:
        builder.build(store, Variant.SLIM, steps.append)
    assert steps == ["reading the package index"]
    assert caught.value.last_lines[-1] == "E: no such host"
    assert "no such host" in caught.value.log.read_text()
    assert list((store.folder / "building").iterdir()) == []


@needs_root
def test_a_build_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "mmdebstrap", "sleep 600")
    program(tmp_path / "bin", "apt-get", "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(builder, "BUILD_SECONDS", 1)
    begin = time.monotonic()
    with pytest.raises(BuildFailed, match="took more than 1 s"):
        builder.build(ImageStore(tmp_path / "images"), Variant.SLIM)
    assert time.monotonic() - begin < 100


@needs_root
def test_a_build_dies_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    program(tmp_path / "bin", "mmdebstrap", f"exec sleep 4242{os.getpid()}")
    program(tmp_path / "bin", "apt-get", "")
    code = (
        "from pathlib import Path; from cubicle.images import builder, store;"
        f"builder.build(store.ImageStore(Path({str(tmp_path / 'images')!r})), store.Variant.SLIM)"
    )
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    asker = subprocess.Popen([sys.executable, "-c", code], env=environment)

    def at_work() -> bool:
        """Whether it runs; its number is another in the namespace that it is in."""
        return f"sleep\0004242{os.getpid()}\0".encode() in command_lines()

    try:
        until(at_work)
    finally:
        asker.kill()
        asker.wait(60)
    until(lambda: not at_work())


def command_lines() -> set[bytes]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.add(path.read_bytes())
    return found


def until(done) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + 100
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_recipe_that_ships_is_whole() -> None:
    recipe = Recipe.here()
    for name in ("hook.sh", "fetch.sh", "setup.sh", "playwright.sh", "lists.sh"):
        subprocess.run(["sh", "-n", str(recipe.folder / name)], check=True, timeout=60)
    assert {"bash", "python3", "tmux"} <= set(recipe.packages(Variant.SLIM))
    assert "chromium" not in recipe.packages(Variant.SLIM)
    assert recipe.wheels(Variant.SLIM) == []
