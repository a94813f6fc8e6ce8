"""What every test stands on: asyncio, a loop that nothing may block, and parts that are there or said to be missing."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import hypothesis
import pytest
from blockbuster import BlockBuster
from websockets.asyncio.client import connect

from cubicle.drivers.memory import MemoryDriver
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from tests.support import failures, fork_server, guests, limits, loop, marked_files, remains, skips

# A busy machine is no failure. In a hurry (`make test-fast`) fewer examples and smaller crowds have to do.
IN_A_HURRY = bool(os.environ.get("CUBICLE_FAST"))
_BUSY = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("all", **_BUSY)  # type: ignore[arg-type]
hypothesis.settings.register_profile("fast", max_examples=15, **_BUSY)  # type: ignore[arg-type]
hypothesis.settings.load_profile("fast" if IN_A_HURRY else "all")

LEFT = pytest.StashKey[list[str]]()
LEFT_OUT = pytest.StashKey[dict[str, int]]()
LEFT_BEHIND = 20
"""The exit code of a run that left something behind, whatever else happened."""
TAKES_LONG = 900.0
"""Seconds that a test may take by its own mark, from which on it begins before all others."""
# Kernels take namespaces apart, and inits fetch the dead, when they have the time.
SETTLED_SECONDS = float(os.environ.get("CUBICLE_SETTLED_SECONDS", "30"))

# One look-up in a local folder is quicker than a thread. Reading, writing, waiting and starting programs are not.
QUICK = (
    "os.access",
    "os.getcwd",
    "os.link",
    "os.listdir",
    "os.mkdir",
    "os.path.abspath",
    "os.path.islink",
    "os.path.ismount",
    "os.path.sameopenfile",
    "os.path.samestat",
    "os.readlink",
    "os.remove",
    "os.rename",
    "os.replace",
    "os.rmdir",
    "os.scandir",
    "os.stat",
    "os.statvfs",
    "os.symlink",
    "os.unlink",
)

# A busy machine is no failure.
_of_handshakes = connect.__init__.__kwdefaults__ or {}
assert _of_handshakes["open_timeout"] == 10
_of_handshakes["open_timeout"] = 60

# Whom the machine trusts is read once, and not by each of some thousand clients.
_trusting = httpx._config.create_ssl_context
_usual_trust = functools.cache(_trusting)


def _trust(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    usual = verify is True and cert is None and not os.environ.keys() & {"SSL_CERT_FILE", "SSL_CERT_DIR"}
    return _usual_trust() if usual else _trusting(verify, cert, trust_env)


httpx._transports.default.create_ssl_context = _trust  # type: ignore[attr-defined]

# What is imported and collected is there to stay: looking for rubbish among it, again and again, takes each worker seconds.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    limits.limit(item)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long begins first; what only some runs have is left out of the others."""
    items.sort(key=_begins)
    marked_files.note(items)
    counts = Counter(mark for item in items if (mark := skips.left_out(item)))
    config.stash[LEFT_OUT] = dict(counts)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(counts)
    if counts:
        config.hook.pytest_deselected(items=[item for item in items if skips.left_out(item)])
        items[:] = [item for item in items if not skips.left_out(item)]


def _begins(item: pytest.Item) -> float:
    """A worker that begins a test of minutes at the end of the run leaves the others idle."""
    seconds = limits.around(item)
    return -seconds if seconds >= TAKES_LONG else 0.0


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker collects all tests, and counts the same."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[LEFT_OUT] = output.get("left_out", {})
    loop.LEFT_OPEN.extend(output.get("left_open", []))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    skips.judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    skips.judge(report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give each run a short folder of its own: runs side by side leave each other alone, and paths of sockets fit."""
    failures.begin(config)
    guests.compile_once()
    if not hasattr(config, "workerinput") and config.option.basetemp is None:
        config.option.basetemp = tempfile.mkdtemp(prefix="cubicle-tests-", dir="/tmp")
        # Whatever is started from here on can be known by this.
        os.environ["CUBICLE_TEST_RUN"] = config.option.basetemp
        config.add_cleanup(lambda: _remove(config))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    """A run that leaves mounts, loop devices, cgroups, processes or folders of its own behind has failed.

    One that was interrupted ends its processes itself: its workers had no time to.
    """
    fork_server.close()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_open"] = loop.LEFT_OPEN
    base = os.environ.get("CUBICLE_TEST_RUN")
    if hasattr(session.config, "workerinput") or base is None or base != session.config.option.basetemp:
        return
    interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
    left = _left(base, min(3, SETTLED_SECONDS) if interrupted else SETTLED_SECONDS)
    if left and interrupted:
        remains.end_processes(base)
        left = _left(base, SETTLED_SECONDS)
    if left:
        session.config.stash[LEFT] = left
        session.exitstatus = LEFT_BEHIND


def _left(base: str, seconds: float) -> list[str]:
    """What is still there of this run after a while."""
    deadline = time.monotonic() + seconds
    while (left := remains.of_run(Path(base))) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in skips.summary(terminalreporter.stats.get("skipped", []), config.stash.get(LEFT_OUT, dict[str, int]())):
        terminalreporter.write_line(line)
    for line in loop.LEFT_OPEN:
        terminalreporter.write_line(f"LEFT OPEN {line}", yellow=True)
    for line in config.stash.get(LEFT, []):
        terminalreporter.write_line(f"LEFT BEHIND {line}", red=True)
    failures.note(terminalreporter, config, config.stash.get(LEFT, []))


def _remove(config: pytest.Config) -> None:
    # Through a mount that a test left behind, this would remove what is mounted.
    if LEFT not in config.stash:
        shutil.rmtree(config.option.basetemp, ignore_errors=True)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": loop.TidyLoop}


@pytest.fixture(scope="session", autouse=True)
def nothing_blocks_the_loop() -> Iterator[None]:
    """A call of the package that blocks a running event loop fails the test that made it."""
    watch = BlockBuster(scanned_modules=["cubicle"])
    for name in QUICK:
        watch.functions.pop(name, None)
    watch.activate()
    yield
    watch.deactivate()


@pytest.fixture(scope="session", autouse=True)
def spawners_are_forked() -> Iterator[None]:
    """Those of services in this process; `tests/worker` has them started as the product does."""
    with mock.patch("cubicle.worker.spawner.start_program", fork_server.start_spawner):
        yield


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Sandboxes with the true guest, all removed at the end."""
    driver = MemoryDriver(tmp_path / "sandboxes")
    async with Fleet(driver, ChatIndex(tmp_path / "ledger"), pool_size=0) as fleet:
        yield fleet
        for seen in await driver.list():
            await driver.delete(seen.name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, reason in (("oci", _no_oci), ("docker", _no_docker), ("kubernetes", _no_kubernetes)):
        if item.get_closest_marker(mark) and (missing := reason()):
            absent(missing)


def absent(what: str) -> None:
    """Skip a test for want of a part; where every part is promised (`make test`, CI), fail it instead."""
    if skips.all_promised():
        pytest.fail(f"{what} (nothing may be missing in this run)", pytrace=False)
    pytest.skip(what)


def _no_oci() -> str:
    if os.geteuid() != 0:
        return "needs root: sandboxes of the embedded driver are made by it"
    if not any(shutil.which(name, path=_path()) for name in ("runc", "crun")):
        return "needs runc or crun: make setup"
    return ""


def _no_kubernetes() -> str:
    return "" if os.environ.get("KUBECONFIG") else "needs a cluster: scripts/with-kubernetes pytest …"


@functools.cache
def _no_docker() -> str:
    if not shutil.which("docker", path=_path()):
        return "needs the docker command: scripts/packages test"
    try:
        answer = subprocess.run(["docker", "version"], capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "needs a Docker engine, and the one here does not answer"
    return "" if answer.returncode == 0 else "needs a Docker engine: scripts/with-dockerd pytest …"


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
