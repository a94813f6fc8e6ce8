"""scripts/with-dockerd lends a Docker engine and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import absent
from tests.support import remains

pytestmark = pytest.mark.real
SCRIPT = Path(__file__).parent.parent / "scripts" / "with-dockerd"


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """A place of its own for the engine's data: the script keeps it beside itself."""
    if os.geteuid() != 0:
        absent("needs root: only it starts a Docker engine")
    if not shutil.which("dockerd", path=os.environ["PATH"] + ":/usr/sbin"):
        absent("needs dockerd: scripts/packages test")
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    yield tmp_path
    deadline = time.monotonic() + 60  # who was killed may take its time to die
    while remains.processes(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert remains.processes(str(tmp_path)) == []
    assert remains.mounts(tmp_path) == []


def start(checkout: Path, *command: str, stderr: int | None = None) -> subprocess.Popen[str]:
    # An engine that runs on this machine must not be found, or nothing of this is tried.
    environment = os.environ | {"DOCKER_HOST": f"unix://{checkout}/none.sock"}
    return subprocess.Popen(
        [str(checkout / "scripts" / "with-dockerd"), *command],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment,
        # A run in the background has INT ignored, and a shell cannot trap what it inherits as ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_the_command_has_an_engine_and_its_exit_status_is_handed_on(checkout: Path) -> None:
    with start(
        checkout, "sh", "-c", "docker info --format 'root={{.DockerRootDir}}'; echo $DOCKER_HOST; exit 7"
    ) as process:
        output, _ = process.communicate(timeout=250)
    assert process.returncode == 7
    assert f"root={checkout}/.state/docker/data" in output
    socket = Path(output.split("unix://")[1].strip())
    assert not socket.parent.exists()
    assert remains.processes(str(socket.parent)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_command_and_the_engine(checkout: Path, number: signal.Signals) -> None:
    with start(checkout, "sh", "-c", "echo pid=$$; exec sleep 1000") as process:
        assert process.stdout
        pid = next(match[1] for line in process.stdout if (match := re.match(r"pid=(\d+)", line)))
        process.send_signal(number)
        assert process.wait(timeout=200) == 128 + number
    assert not Path(f"/proc/{pid}").exists()


def test_what_a_killed_engine_left_mounted_is_unmounted(checkout: Path) -> None:
    data = checkout / ".state" / "docker" / "data"
    with start(checkout, "sh", "-c", "echo pid=$$; exec sleep 1000") as process:
        assert process.stdout
        assert any(line.startswith("pid=") for line in process.stdout)
        (engine,) = [int(line.split(":")[0]) for line in remains.processes(str(data)) if "--data-root" in line]
        os.kill(engine, signal.SIGKILL)
        subprocess.run(["mount", "--bind", data, data], check=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=200) == 143


def test_an_engine_that_cannot_start_is_said_to(checkout: Path) -> None:
    data = checkout / ".state" / "docker" / "data"
    data.parent.mkdir(parents=True)
    data.write_text("a file where a folder must be")
    with start(checkout, "touch", str(checkout / "ran"), stderr=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=250)
    assert process.returncode == 1
    assert "The Docker engine did not start" in said
    assert not (checkout / "ran").exists()
