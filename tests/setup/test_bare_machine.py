"""`make serve` on a machine that has nothing but git, make, Python and certificates, up to the first tool call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cubicle.images import builder
from tests.conftest import absent
from tests.setup.bare_root import BareRoot
from tests.support.process import free_port
from tests.support.service import ACCEPT

pytestmark = [pytest.mark.bare, pytest.mark.oci, pytest.mark.real, pytest.mark.timeout(1800)]
READY_SECONDS = 1200

UBUNTU_KEYRING = Path(os.environ.get("UBUNTU_KEYRING", "/usr/share/keyrings/ubuntu-archive-keyring.gpg"))
# Ubuntu's archive is asked for by mmdebstrap's own default: this machine knows none of it.
DISTRIBUTIONS = ["bookworm", *(pytest.param(name, marks=pytest.mark.long) for name in ("trixie", "noble"))]


@pytest.fixture(params=DISTRIBUTIONS)
def bare(request: pytest.FixtureRequest) -> Iterator[BareRoot]:
    if not shutil.which("mmdebstrap"):
        absent("needs mmdebstrap: scripts/packages test")
    folder = Path(tempfile.mkdtemp(prefix="bare-", dir=os.environ["CUBICLE_TEST_RUN"]))
    if request.param == "noble":
        if not UBUNTU_KEYRING.exists():
            absent("needs ubuntu-keyring: apt-get install ubuntu-keyring, or UBUNTU_KEYRING=FILE")
        root = BareRoot(folder / "root", request.param, [], "main,universe", str(UBUNTU_KEYRING))
    else:
        root = BareRoot(folder / "root", request.param, builder.sources(request.param))
    try:
        root.make()
        yield root
    finally:
        shutil.rmtree(folder)


def test_make_serve_comes_up_and_answers_a_tool_call(bare: BareRoot) -> None:
    port = free_port()
    with bare.serving(port) as process:
        wait_until_ready(bare, port, process)
        assert "hello from a sandbox" in call_bash(port, "echo hello from a sandbox; id -un")
    assert bare.left() == []


def wait_until_ready(bare: BareRoot, port: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            if (
                httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, verify=False, timeout=10).status_code
                == 200
            ):
                return
        except httpx.HTTPError:
            pass
        assert process.poll() is None, bare.log()[-4000:]
        assert "make: ***" not in bare.log(), bare.log()[-4000:]
        assert time.monotonic() < deadline, f"not ready after {READY_SECONDS} s:\n{bare.log()[-4000:]}"
        time.sleep(0.5)


def call_bash(port: int, command: str) -> str:
    arguments = {"command": command, "description": "first call"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bash_tool", "arguments": arguments}}
    headers = {"Accept": ACCEPT, "X-Chat-Id": "first"}
    answer = httpx.post(
        f"http://127.0.0.1:{port}/mcp", json=body, headers=headers, trust_env=False, verify=False, timeout=120
    )
    assert answer.status_code == 200, answer.text
    return json.dumps(answer.text)
