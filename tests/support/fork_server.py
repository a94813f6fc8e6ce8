"""A process that has imported the product, and forks it: services, workers, commands, and the spawners of network workers.

Imports are most of what either costs, up to two seconds of a processor, and tests start them by the hundred. The spawner of
a service has to be its child: it is forked with the service, and waits until the service wants it. That of a service which
runs in the process of the tests is a fork of this process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support import guests

_PROGRAM, _WORKER, _SPAWNER = "cubicle.cli", "cubicle.cli.worker", "cubicle.worker.__main__"
_IMPORTED = (
    _SPAWNER,
    *("cubicle.cli.serve", "cubicle.app", "cubicle.http_api.server", "cubicle.http_api.uvicorn_http"),
    "tests.support.small_cluster",
    *(_WORKER, "cubicle.cli.member", "cubicle.members.disk_records", "cubicle.drivers.kubernetes.driver"),
)
_REQUEST_BYTES = 1024**2
_DESCRIPTORS = 8
_MOUNTS = 0x20000  # CLONE_NEWNS
_SECONDS = 120


class Forked:
    """A running command of ours; what a test uses of a `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._handle = os.pidfd_open(pid)
        self._turn = threading.Lock()
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            signal.pidfd_send_signal(self._handle, number)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, seconds: float) -> int:
        code = self._ended(seconds)
        if code is None:
            raise subprocess.TimeoutExpired("cubicle", seconds)
        return code

    def _ended(self, seconds: float) -> int | None:
        with self._turn:
            if self.returncode is None and select.select([self._handle], [], [], seconds)[0]:
                self.returncode = int(self._server.ask({"reap": self.pid}))
                os.close(self._handle)
            return self.returncode


class ForkServer:
    """The side of the tests."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_SECONDS)
        self._turn = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(
        self,
        words: Sequence[str],
        environment: dict[str, str],
        folder: Path,
        output: int,
        *,
        errors: int | None = None,
        mounts: str = "",
        module: str = _PROGRAM,
    ) -> Forked:
        """`cubicle` with these words and this environment, in this folder, with both its outputs there; or its errors
        elsewhere. `mounts`: the file of another mount namespace, in which it is to be. `module`: one with another main."""
        request = _request(module, words, environment, folder) | {"mounts": mounts}
        return Forked(self, int(self.ask(request, output, output if errors is None else errors)))

    def start_worker(self, environment: dict[str, str], folder: Path, output: int, told: int, ready: int) -> Forked:
        """`cubicle.cli.worker`: it reads from `told`, and writes to `ready` when it serves."""
        request = _request(_WORKER, [], environment, folder)
        return Forked(self, int(self.ask(request, output, output, told, ready)))

    def start_spawner(self, channel: int) -> Forked:
        """`cubicle.worker`, of a service in this process."""
        return Forked(self, int(self.ask({"spawner": os.getpid()}, channel)))

    def ask(self, request: dict[str, Any], *descriptors: int) -> bytes:
        with self._turn:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            return self._channel.recv(100)

    def close(self) -> None:
        self._channel.close()
        self._process.wait(_SECONDS)


def _request(module: str, words: Sequence[str], environment: dict[str, str], folder: Path) -> dict[str, Any]:
    named = {"module": module, "words": list(words), "environment": environment, "folder": str(folder)}
    return named | {"mounts": ""}


_first = threading.Lock()


def the_server() -> ForkServer:
    """One for each process of a test run. Blocks."""
    with _first:
        return _server()


@functools.cache
def _server() -> ForkServer:
    return ForkServer()


class Spawner:
    """A spawner that runs; what the product uses of an `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, wait: Callable[[], int]) -> None:
        self.pid = pid
        self._wait = wait

    async def wait(self) -> int:
        return await asyncio.to_thread(self._wait)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


async def start_spawner(channel: int) -> Spawner:
    """In the place of `cubicle.worker.spawner.start_program`, in the process of the tests."""
    passed = os.dup(channel)  # the service closes its own when it does not wait any more

    def start() -> Forked:
        try:
            return the_server().start_spawner(passed)
        finally:
            os.close(passed)

    forked = await asyncio.to_thread(start)
    return Spawner(forked.pid, lambda: forked.wait(_SECONDS))


def close() -> None:
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


def _fork_on_request(channel: socket.socket) -> str:
    """Until the tests hang up. In a fork it answers with the module that is to run."""
    while True:
        content, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, _DESCRIPTORS)
        if not content:
            return ""
        request = json.loads(content)
        if "reap" in request:
            channel.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1]))
            continue
        pid = os.fork()
        if pid == 0:
            channel.close()
            if "spawner" in request:
                _become_spawner(descriptors[0], request["spawner"])
                return _SPAWNER
            _become(request, *descriptors)
            return str(request["module"])
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(b"%d" % pid)


def _become(request: dict[str, Any], output: int, errors: int, told: int | None = None, *passed: int) -> None:
    os.setsid()
    if request["mounts"]:
        _enter(request["mounts"])
    for number, descriptor in ((0, told), (1, output), (2, errors)):
        if descriptor is not None:
            os.dup2(descriptor, number)
            os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["cubicle", *request["words"], *map(str, passed)]


def _become_spawner(channel: int, service: int) -> None:
    os.setsid()
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nowhere, number)
    os.close(nowhere)
    gc.enable()
    os.getppid = lambda: service  # that of a service in the process of the tests is no child of it
    sys.argv = ["cubicle.worker", str(channel), str(service)]


def _have_spawner_ready() -> None:
    """Fork one that waits until the service wants it. The next ones are started by the service itself, as is one of a process
    that the service forked."""
    from cubicle.worker import spawner

    start_program, service = spawner.start_program, os.getpid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        content, descriptors, _, _ = socket.recv_fds(theirs, 1, 1)
        theirs.close()
        if not content:
            os._exit(0)
        _become_spawner(descriptors[0], service)
        _run(_SPAWNER)
        os._exit(0)
    theirs.close()

    async def start(channel: int) -> Any:
        if os.getpid() != service or ours.fileno() < 0:
            return await start_program(channel)
        with ours:
            socket.send_fds(ours, [b"+"], [channel])
        return Spawner(pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    spawner.start_program = start


def _enter(mounts: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(mounts) as file:
        if libc.setns(file.fileno(), _MOUNTS) != 0:
            raise OSError(ctypes.get_errno(), "setns", mounts)


def _main() -> None:
    gc.disable()  # as `cubicle serve` does
    for name in _IMPORTED:
        importlib.import_module(name)
    guests.compile_once()
    gc.freeze()  # a fork that looks for rubbish would copy all of it
    if module := _fork_on_request(socket.socket(fileno=int(sys.argv[1]))):
        if module == _WORKER or (sys.argv[1:2] == ["serve"] and os.environ.get("WORKERS", "1") == "1"):
            _have_spawner_ready()
        _run(module)


def _run(module: str) -> None:
    try:
        importlib.import_module(module).main()
    except SystemExit as ended:
        _leave(ended)


def _leave(ended: SystemExit) -> None:
    """End as the interpreter does, but leave what was imported where it is.

    Taking that apart copies all of it, as it belongs to the process that forked: half a second of a processor.
    """
    if isinstance(ended.code, str):
        sys.stderr.write(f"{ended.code}\n")
    code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _main()
