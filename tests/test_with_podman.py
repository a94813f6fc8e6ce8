"""scripts/with-podman lends a Podman, and lends it again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import absent
from tests.support import remains

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).parent.parent / "scripts" / "with-podman"
ASK = "curl -sS --max-time 60 --unix-socket ${PODMAN_HOST#unix://} http://podman/v1.40/containers/json"


def test_it_is_lent_again_after_a_run_that_was_killed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        absent("needs root: only it starts this Podman")
    if not shutil.which("podman"):
        absent("needs podman: scripts/packages test")
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    for last in ("kill -KILL $PPID", "true"):
        command = [str(tmp_path / "scripts" / "with-podman"), "sh", "-c", f"echo $PODMAN_HOST; {ASK}; {last}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        _, socket, answer, *_ = done.stdout.splitlines()
        assert answer == "[]", done
        # Whoever kills the script has its Podman to see to.
        for line in remains.processes(str(tmp_path)):
            os.kill(int(line.split(":")[0]), signal.SIGKILL)
        shutil.rmtree(Path(socket.removeprefix("unix://")).parent, ignore_errors=True)
    assert done.returncode == 0
    assert remains.mounts(tmp_path) == []
