"""Calls the OCI runtime (runc, crun, runsc): a program that starts a container and goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cubicle.drivers.common.completion import complete
from cubicle.drivers.common.container import RLIMITS, at_most
from cubicle.drivers.oci import mounts
from cubicle.drivers.oci.config import LISTEN_FD
from cubicle.drivers.oci.process import ended

CANDIDATES = ("crun", "runc", "runsc")
"""In the order of preference: a start with crun costs two thirds of one with runc; both are well ahead of gVisor."""

RUN_SECONDS = 30.0
DELETE_SECONDS = 15.0
_VERSION_SECONDS = 10.0
_LOG_LIMIT = 64 * 1024
_MANY_PROCESSORS = 4
_PRLIMIT = "/usr/bin/prlimit"
_UNIFIED = Path("/sys/fs/cgroup/unified")


class RuntimeFailed(Exception):
    """The runtime could not do what was asked; the message is its own, in words."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One runtime program, with its state in a folder of our own."""

    path: str
    version: str
    stage: Path
    covered: Path | None = None
    """A folder of the host that it must not see."""

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def state(self) -> Path:
        return self.stage / "state" / self.name

    @property
    def logs(self) -> Path:
        return self.stage / "logs"

    @property
    def hands_over(self) -> bool:
        """Whether it passes an open descriptor on to the container's first process."""
        return self.name != "runsc"

    async def run(
        self, name: str, bundle: Path, pid_file: Path, listener: int | None, output: int, *, keyring: bool
    ) -> None:
        """Start a container and leave it running; its output goes to a descriptor. Raises RuntimeFailed."""
        options = ["run", "--detach", "--bundle", str(bundle), "--pid-file", str(pid_file)]
        if self.hands_over and not keyring:
            # The kernel allows one user 200 keys: too few where all sandboxes are one user. Commands cannot reach any
            # key: seccomp refuses keyctl, add_key and request_key.
            options += ["--no-new-keyring"]
        if listener is not None:
            options += ["--preserve-fds", "1"]
        await self._call([*options, name], RUN_SECONDS, listener, output)

    async def try_out(self, name: str, bundle: Path) -> None:
        """Run a container to its end. Raises RuntimeFailed, also when what it runs fails."""
        await self._call(["run", "--bundle", str(bundle), name], RUN_SECONDS, None, None)

    async def delete(self, name: str) -> None:
        """End what is left of a container, and forget it. Nothing happens if there is none."""
        if not (self.state / name).exists() and self.hands_over:
            return
        try:
            await self._call(["delete", "--force", name], DELETE_SECONDS, None, None)
        except RuntimeFailed as failure:
            if "does not exist" not in str(failure):
                raise

    async def _call(self, args: list[str], seconds: float, listener: int | None, output: int | None) -> None:
        log = self.logs / f"{args[-1]}-{secrets.token_hex(4)}"
        argv = [self.path, "--root", str(self.state), "--log", str(log), "--log-format", "json"]
        if self.name == "runsc":
            argv += ["--network", "none", "--host-uds=create", "--overlay2=none", f"--platform={_gvisor_platform()}"]
        else:
            argv = [*_limited(), *argv]
        try:
            # To its end even when cancelled: a runtime that is killed half-way leaves processes and cgroups to nobody.
            status = await complete(_spawn([*argv, *args], seconds, listener, output, self.covered))
            if status is None:
                raise RuntimeFailed(f"{self.name} did not answer within {seconds:g} seconds")
            if status != 0:
                said = await asyncio.to_thread(_complaint, log, output)
                raise RuntimeFailed(said or f"{self.name} ended with code {status}")
        finally:
            log.unlink(missing_ok=True)


def _limited() -> list[str]:
    """How a program is called that shall have the limits of a sandbox, and hand them on to it."""
    names = {kind: kind.removeprefix("RLIMIT_").lower() for kind in RLIMITS}
    return [_PRLIMIT, *(f"--{name}={at_most(kind, RLIMITS[kind])}" for kind, name in names.items()), "--"]


def _hidden_from_crun() -> Path | None:
    """crun refuses a host where the tree of cgroup version 2 has a controller beside the trees of version 1. Without
    that tree, it takes such a host for one of version 1, which is where the limits of sandboxes are."""
    try:
        return _UNIFIED if (_UNIFIED / "cgroup.controllers").read_text().strip() else None
    except OSError:
        return None


def remove_logs(stage: Path) -> None:
    """Remove the logs of calls that a killed service did not wait for. Only while no other driver uses the folder."""
    for log in (stage / "logs").glob("*"):
        with contextlib.suppress(OSError):
            log.unlink()


def _gvisor_platform() -> str:
    """How gVisor gets hold of the system calls. Its faster way has threads that wait by spinning, one for each process:
    with few processors they take the time of those that work, and commands start later than the older way lets them."""
    return "systrap" if len(os.sched_getaffinity(0)) >= _MANY_PROCESSORS else "ptrace"


async def _spawn(
    argv: list[str], seconds: float, listener: int | None, output: int | None, covered: Path | None
) -> int | None:
    """Run to the end; None if it takes too long (it is killed then).

    posix_spawn, not asyncio's subprocesses: the listener must become exactly descriptor 3, and a runtime is started
    from a big process in well under a millisecond. Everything else that Python opens closes itself on exec.
    """
    # Never a device of the host: runc gives the ownership of its standard streams to the container's root.
    nothing = os.memfd_create("nothing")
    actions: list[tuple[object, ...]] = [
        (os.POSIX_SPAWN_DUP2, nothing, 0),
        (os.POSIX_SPAWN_DUP2, nothing if output is None else output, 1),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    if listener is not None:
        actions.append((os.POSIX_SPAWN_DUP2, listener, LISTEN_FD))
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    try:
        start = partial(os.posix_spawn, argv[0], argv, environment, file_actions=actions, setsigdef=[signal.SIGPIPE])
        # It returns at once, when the program is loaded.
        pid = start() if covered is None else await asyncio.wrap_future(mounts.run_without(covered, start))
    finally:
        os.close(nothing)
    pidfd = os.pidfd_open(pid)
    try:
        if not await ended(pidfd, seconds):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            _reap(pid)
            return None
    finally:
        os.close(pidfd)
    return _reap(pid)


def _reap(pid: int) -> int:
    """The exit code of a child that has ended, or is about to."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _complaint(log: Path, output: int | None) -> str:
    """What the runtime said last in its log, or else on its error output, as one line."""
    said = ""
    with contextlib.suppress(OSError):
        for line in log.read_bytes()[-_LOG_LIMIT:].splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("level") in ("error", "fatal"):
                    said = str(entry.get("msg", ""))
    if not said and output is not None:
        with contextlib.suppress(OSError):
            said = os.pread(output, _LOG_LIMIT, 0).decode(errors="replace")
    return " ".join(said.split())[:500]


def find(wanted: str, stage: Path) -> list[Runtime]:
    """The runtimes installed here, best first; `wanted` (a name or a path) leaves only that one."""
    found = []
    for name in (wanted,) if wanted else CANDIDATES:
        path = shutil.which(name, path=f"{os.defpath}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin")
        if path and (version := _version([path, "--version"])):
            covered = _hidden_from_crun() if Path(path).name == "crun" else None
            found.append(Runtime(path, version, stage, covered))
    return found


def _version(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_VERSION_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else ""
