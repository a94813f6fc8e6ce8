"""What `cubicle serve` finds missing on a host, whom it asks, and what it then does."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cubicle.cli import host_setup
from cubicle.cli.host_setup import Need, Plan, host_packages, make_plan
from cubicle.drivers.oci.runtimes import CANDIDATES
from cubicle.images.store import UnknownImage, Variant
from cubicle.machine.errors import Unusable
from cubicle.settings import Settings, load

PROGRAM = [sys.executable, "-c", "from cubicle.cli import main; main()", "serve"]

# Stands in for apt-get: it notes how it was called, and what it "installs" is there from then on.
APT = """#!/bin/sh
echo "$@" >>"$PWD/apt.log"
case "$*" in
*" update") exit 0 ;;
*" install "*) [ -e "$PWD/no-lists" ] && { rm "$PWD/no-lists"; exit 100; }; exit 0 ;;
esac
"""


def settings(folder: Path, **changes: object) -> Settings:
    return load(data_dir=folder / "data", image_dir=folder / "images", sandbox_image="slim", driver="oci", **changes)


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host whose search path holds apt-get and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "apt-get").write_text(APT)
    (folder / "apt-get").chmod(0o755)
    monkeypatch.setattr(host_setup, "_PATH", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def provide(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)


def test_every_package_of_the_list_says_what_stands_for_it() -> None:
    found = host_packages()
    assert {package.need for package in found} == set(Need)
    assert len({package.name for package in found}) == len(found) > 5


def test_the_scripts_of_the_repository_install_the_same_packages() -> None:
    root = Path(__file__).parents[2]
    # On a host without apt-get the script prints all that it wants.
    hide = "p=$(mktemp -d); for n in bash dirname awk python3 sh id dpkg-query env; do ln -s $(command -v $n) $p/; done"
    run = f'{hide}; PATH=$p bash {root}/scripts/packages serve 2>&1; rm -rf "$p"'
    said = subprocess.run(["bash", "-c", run], capture_output=True, text=True, timeout=60, check=False).stdout
    assert {package.name for package in host_packages()} <= set(said.split()), said


def test_a_bare_host_lacks_all_of_it(lacking: Path, tmp_path: Path) -> None:
    plan = make_plan(settings(tmp_path))
    assert plan.variant is Variant.SLIM
    assert {"runc", "mmdebstrap", "e2fsprogs", "nftables", "iproute2"} <= set(plan.packages)
    assert "apt-get: runc" in str(plan)
    assert "sandbox image slim" in str(plan)


@pytest.mark.parametrize("runtime", CANDIDATES)
def test_any_runtime_will_do(runtime: str, lacking: Path, tmp_path: Path) -> None:
    provide(lacking, runtime)
    assert "runc" not in make_plan(settings(tmp_path)).packages


def test_a_runtime_that_the_operator_named_is_the_operators(lacking: Path, tmp_path: Path) -> None:
    assert not {"runc", "crun"} & set(make_plan(settings(tmp_path, oci_runtime="/opt/runsc"), everything=True).packages)


def test_what_only_makes_a_host_better_is_no_reason_to_ask(
    lacking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_setup, "missing_variant", lambda _: None)
    provide(lacking, "runc")
    assert make_plan(settings(tmp_path)) == Plan()
    assert make_plan(settings(tmp_path), everything=True).packages == ("crun", "e2fsprogs", "iproute2", "nftables")


def test_an_image_that_is_no_variant_is_not_built(lacking: Path, tmp_path: Path) -> None:
    provide(lacking, "runc")
    with pytest.raises(UnknownImage, match="There is no sandbox image"):
        make_plan(load(data_dir=tmp_path, image_dir=tmp_path, sandbox_image="0123abcd", driver="oci"))


@pytest.mark.parametrize("driver", ["memory", "docker"])
def test_other_drivers_need_nothing_of_this_host(driver: str, lacking: Path, tmp_path: Path) -> None:
    host_setup.prepare(load(data_dir=tmp_path, driver=driver), yes=False)
    assert not (tmp_path / "apt.log").exists()


def test_packages_are_installed_without_those_that_apt_recommends(lacking: Path, tmp_path: Path) -> None:
    host_setup.install(("runc", "nftables"))
    (line,) = (tmp_path / "apt.log").read_text().splitlines()
    assert line.endswith("install --no-install-recommends runc nftables")


def test_package_lists_that_are_missing_are_fetched(lacking: Path, tmp_path: Path) -> None:
    (tmp_path / "no-lists").touch()
    host_setup.install(("runc",))
    assert [line.split()[6] for line in (tmp_path / "apt.log").read_text().splitlines()] == [
        "install",
        "update",
        "install",
    ]


def test_what_apt_cannot_install_is_named(lacking: Path) -> None:
    (lacking / "apt-get").write_text("#!/bin/sh\nexit 100\n")
    with pytest.raises(Unusable, match="apt-get could not install runc"):
        host_setup.install(("runc",))


def test_a_host_without_apt_is_told_what_to_install(lacking: Path) -> None:
    (lacking / "apt-get").unlink()
    with pytest.raises(Unusable, match=r"no apt-get.*runc nftables"):
        host_setup.install(("runc", "nftables"))


def environment(folder: Path) -> dict[str, str]:
    changed = {"DATA_DIR": str(folder / "data"), "IMAGE_DIR": str(folder / "images"), "DRIVER": "oci", "PORT": "0"}
    return os.environ | changed | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "SANDBOX_IMAGE": "slim"}


@pytest.mark.oci
def test_without_a_terminal_nothing_is_done_unasked(tmp_path: Path) -> None:
    done = subprocess.run(
        PROGRAM,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    assert "the sandbox image slim" in done.stderr
    assert "run: cubicle serve --yes" in done.stderr
    assert not (tmp_path / "images").exists()


@pytest.mark.oci
def test_at_a_terminal_it_asks_and_takes_no_for_an_answer(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(PROGRAM, env=environment(tmp_path), stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        said = until(ours, b"[Y/n]")
        assert b"the sandbox image slim" in said
        os.write(ours, b"n\n")
        assert b"Nothing was changed" in until(ours, b"fix it.")
        assert process.wait(100) == 1
    finally:
        os.close(ours)
    assert not (tmp_path / "images").exists()


def until(terminal: int, wanted: bytes, limit: float = 100) -> bytes:
    """What comes on a terminal, up to these bytes."""
    said, deadline = b"", time.monotonic() + limit
    while wanted not in said:
        left = deadline - time.monotonic()
        assert left > 0, said
        assert select.select([terminal], [], [], left)[0], said
        with contextlib.suppress(OSError):
            if not (piece := os.read(terminal, 4096)):
                break
            said += piece
            continue
        break
    assert wanted in said, said
    return said
