"""Something that sandboxes need is missing: one clear sentence and an exit code, not a stack trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cubicle.drivers.oci.runtimes import CANDIDATES
from tests.support.process import Said, command

pytestmark = pytest.mark.oci
ROOT = Path(__file__).parents[2]

# In a mount namespace of its own a host can be had without a part, while this one keeps it.
HIDDEN = {
    "runtime": (
        "; ".join(f"mount --bind /dev/null {path}" for name in CANDIDATES if (path := shutil.which(name))),
        "- system packages, by apt-get: runc",
    ),
    "user namespaces": (
        "echo 0 > zero; mount --bind zero /proc/sys/user/max_user_namespaces",
        "User namespaces are switched off: run `sysctl -w user.max_user_namespaces=65536`.",
    ),
    "cgroups": (
        "mount -t tmpfs none /sys/fs/cgroup",
        "The cgroup controllers memory, cpu, pids are missing: mount them, or enable them at boot.",
    ),
    "image": (":", "- the sandbox image slim: built from Debian packages"),
}


@contextmanager
def host_without(part: str, folder: Path) -> Iterator[str]:
    """The file of a mount namespace that lacks this part."""
    script = f"{HIDDEN[part][0]}; echo; exec sleep infinity"
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]
    with subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"\n"
            yield f"/proc/{holder.pid}/ns/mnt"
        finally:
            holder.kill()


def without(part: str, folder: Path, *words: str) -> Said:
    """What a command says on a host without this part."""
    environment = os.environ | {"DATA_DIR": str(folder / "data"), "DRIVER": "oci", "SANDBOX_IMAGE": "slim", "PORT": "0"}
    environment |= {"COLUMNS": "300"} | ({"IMAGE_DIR": str(folder)} if part == "image" else {})
    with host_without(part, folder) as mounts:
        return command(words, environment, folder, mounts=mounts)


@pytest.mark.parametrize("part", HIDDEN)
def test_the_service_says_what_is_missing_and_ends(part: str, tmp_path: Path) -> None:
    done = without(part, tmp_path, "serve")
    assert (done.code, done.output) == (1, "")
    error = "\n".join(line for line in done.errors.splitlines() if not line.startswith("{"))  # without the log
    assert error.startswith("Error: ")
    assert HIDDEN[part][1] in error
    assert "Traceback" not in done.errors


@pytest.mark.parametrize("part", HIDDEN)
def test_doctor_names_it_and_fails(part: str, tmp_path: Path) -> None:
    done = without(part, tmp_path, "doctor")
    assert done.code == 1, done.output + done.errors
    assert done.errors == ""
    (row,) = [line for line in done.output.splitlines() if part in line and "missing" in line]
    assert row.split("  ")[-1].strip()


# In a user namespace root can be anybody.
NOBODY = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


def test_without_root_the_service_says_so(tmp_path: Path) -> None:
    environment = os.environ | {"DATA_DIR": str(tmp_path), "DRIVER": "oci", "PORT": "0"}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = [*NOBODY, sys.executable, "-c", "from cubicle.cli import main; main()", "serve"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=200, check=False)
    said = "Error: The embedded driver needs root: run `sudo cubicle …`, or set DRIVER=docker.\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_without_root_make_serve_says_so_before_it_sets_anything_up(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy(ROOT / "Makefile", tmp_path)
    environment = {name: value for name, value in os.environ.items() if name not in ("DRIVER", "MAKEFLAGS")}
    done = subprocess.run(
        [*NOBODY, "make", "serve"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    assert "This does all of it: sudo make serve\n" in done.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["Makefile", "scripts"]
