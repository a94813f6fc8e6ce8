"""What a person reads who starts the service on a terminal, and what a log gets."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.process import free_port

_SECONDS = 120.0


@pytest.mark.parametrize(
    ("terminal", "workers"),
    [
        pytest.param(True, 2, id="terminal-2"),
        pytest.param(False, 1, id="log-1"),
        pytest.param(True, 1, id="terminal-1", marks=pytest.mark.long),
        pytest.param(False, 2, id="log-2", marks=pytest.mark.long),
    ],
)
def test_a_person_reads_the_address_and_a_log_says_more(tmp_path: Path, terminal: bool, workers: int) -> None:
    port = free_port()
    settings = {"DRIVER": "memory", "EGRESS": "none", "POOL_SIZE": "0", "PORT": str(port), "WORKERS": str(workers)}
    reading, writing = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", "from cubicle.cli import main; main(['serve'])"],
        env=os.environ | settings | {"DATA_DIR": str(tmp_path / "data"), "LOG_FORMAT": "auto"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stderr=writing,
    )
    os.close(writing)
    address = f"http://127.0.0.1:{port}"
    try:
        said = _read_until(reading, f"{address}/mcp\r\n\r\n" if terminal else f"people open {address}/")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        os.close(reading)
    if terminal:
        assert f"\r\n  Cubicle is ready: open {address}/\r\n  MCP clients connect to {address}/mcp\r\n" in said
        assert "INFO" not in said
        assert "{" not in said
    else:
        assert "Cubicle is ready" not in said
        assert '"serving"' in said or " serving " in said
        assert f"MCP clients connect to {address}/mcp" in said


def _read_until(reading: int, wanted: str) -> str:
    said, deadline = "", time.monotonic() + _SECONDS
    while wanted not in said:
        assert select.select([reading], [], [], deadline - time.monotonic())[0], f"it only said: {said}"
        said += os.read(reading, 65536).decode()
    return said
