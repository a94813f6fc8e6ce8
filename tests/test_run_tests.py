"""scripts/run-tests, which `make test` runs: it ends with whoever asked for it, and takes pytest along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "run-tests"
STAND_IN = f"""#!{sys.executable}
import sys, time
try:
    print("started", *sys.argv[1:], flush=True)
    time.sleep(250)
except KeyboardInterrupt:
    print("took down what was up", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["at the keyboard", "by a script"]
)
def test_a_signal_lets_pytest_take_down_what_is_up(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "pytest").write_text(STAND_IN)
    (tmp_path / "pytest").chmod(0o755)
    # A script that starts this one in the background has it ignore the interrupts of the keyboard.
    heeded = signal.SIG_DFL if number is signal.SIGINT else signal.SIG_IGN
    with subprocess.Popen(
        [SCRIPT],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, heeded),
    ) as running:
        assert running.stdout
        assert running.stdout.readline().startswith("==>")
        assert running.stdout.readline().startswith("started -n")
        os.killpg(running.pid, number)
        said, _ = running.communicate(timeout=200)
    assert running.returncode == code
    assert said == "took down what was up\n", "and no second part is begun"
