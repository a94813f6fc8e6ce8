"""The `config.json` of a sandbox's bundle: one pure function of what is wanted and of what the host has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cubicle.drivers.common import seccomp
from cubicle.drivers.common.container import (
    AGENTS,
    CAPABILITIES,
    GUEST,
    GVISOR_TASKS,
    PATH,
    READ_ONLY,
    RLIMITS,
    SYSCTLS,
    WRITABLE,
)
from cubicle.drivers.common.hidden import USUAL
from cubicle.guest.guest_config import GuestConfig
from cubicle.sandbox.driver import SandboxLimits

LISTEN_FD = 3
IDS = 65536
"""Size of the range of user and group ids that a sandbox sees."""
_RECORDS = "/var/lib/cubicle/calls"
"""In the chat's own layer, which outlives a stop."""

TERMINALS = 64
"""The host has 4,096, of which 1,024 are kept for itself."""
TCP_BYTES = 64 * 1024**2
"""Buffers of all TCP connections of a sandbox, where the limit of its memory does not count them (cgroup version 1)."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a bundle has to know about the host."""

    machine: str
    gvisor: bool = False
    """Whether the runtime plays the sandbox's kernel, in processes and threads of its own beside the sandbox's."""
    rlimits: Mapping[str, int] = field(default_factory=lambda: dict(RLIMITS))
    """What one process may have at the most; none of the host's own limits is passed."""
    swap_accounting: bool = True
    hidden: tuple[str, ...] = USUAL
    """What of /proc and /sys nobody in a sandbox may see."""
    shown: tuple[str, ...] = ()
    """What there is of /sys."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Host paths that a sandbox is put together from."""

    rootfs: Path
    uploads: Path
    outputs: Path
    skills: Path
    guest: Path
    socket_dir: Path | None = None
    """Where the guest makes its own socket, for a runtime that hands over no descriptor."""
    agents: Path | None = None
    """Programs of coding agents, if any are installed."""


@dataclass(frozen=True, slots=True)
class BundleSpec:
    """One sandbox, as its bundle describes it."""

    rootfs: Path
    cgroup: str
    first_id: int
    """The host's id of the sandbox's id 0."""
    limits: SandboxLimits
    args: tuple[str, ...]
    mounts: tuple[dict[str, Any], ...] = ()
    user_namespace: Path | None = None
    """One to enter; without it the runtime makes one."""


def guest_args(folders: Folders, environment: Mapping[str, str]) -> tuple[str, ...]:
    """How PID 1 is started, and what it is told; the environment is that of its commands."""
    config = GuestConfig(
        uid=1000,
        gid=1000,
        home="/home/assistant",
        env=dict(environment),
        aliases=WRITABLE,
        records=_RECORDS,
        # Of the runtimes, it is gVisor that hands over no descriptor; there process 1 has no shield of its own.
        spawn_helper=folders.socket_dir is not None,
    )
    if folders.socket_dir is None:
        config = config.replace(listen_fd=LISTEN_FD)
    else:
        config = config.replace(socket="/run/cubicle/host/guest.sock")
    return ("/usr/bin/python3", "-I", "-S", GUEST, config.encode().decode())


def guest_mounts(folders: Folders) -> tuple[dict[str, Any], ...]:
    """The chat's folders and the guest's own: what commands may only read is a second time, writable, on a mount
    (/run/cubicle, mode 0700) that only the guest passes."""
    private = [
        _mount("/run/cubicle", "tmpfs", "tmpfs", "nosuid", "nodev", "noexec", "mode=0700", "size=1m"),
        _bind(folders.guest, GUEST, "ro"),
        _bind(folders.uploads, WRITABLE["/mnt/user-data/uploads"], "rw"),
        _bind(folders.skills, WRITABLE["/mnt/skills"], "rw"),
    ]
    if folders.socket_dir is not None:
        private.append(_bind(folders.socket_dir, "/run/cubicle/host", "rw"))
    return (
        *private,
        _bind(folders.uploads, "/mnt/user-data/uploads", "ro"),
        _bind(folders.outputs, "/mnt/user-data/outputs", "rw"),
        _bind(folders.skills, "/mnt/skills", "ro"),
        *([_bind(folders.agents, AGENTS, "ro")] if folders.agents else []),
    )


def bundle_config(wanted: BundleSpec, facts: HostFacts) -> dict[str, Any]:
    """The whole `config.json`."""
    ids = [{"containerID": 0, "hostID": wanted.first_id, "size": IDS}]
    user = {"type": "user", **({"path": str(wanted.user_namespace)} if wanted.user_namespace else {})}
    return {
        "ociVersion": "1.0.2",
        "hostname": "cubicle",
        "root": {"path": str(wanted.rootfs), "readonly": False},
        "process": _process(wanted, facts),
        "mounts": [*_SYSTEM_MOUNTS, *_system_files(facts), *wanted.mounts],
        "linux": {
            "namespaces": [user, *({"type": t} for t in ("pid", "mount", "ipc", "uts", "network", "cgroup"))],
            "uidMappings": ids,
            "gidMappings": ids,
            "cgroupsPath": wanted.cgroup,
            "resources": _resources(wanted.limits, facts),
            "seccomp": seccomp.profile(facts.machine),
            "maskedPaths": [path for path in facts.hidden if not path.startswith("/sys/")],
            "readonlyPaths": list(READ_ONLY),
            "sysctl": SYSCTLS,
        },
    }


def _process(wanted: BundleSpec, facts: HostFacts) -> dict[str, Any]:
    capabilities = list(CAPABILITIES)
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": list(wanted.args),
        "env": [f"PATH={PATH}"],
        "cwd": "/",
        "capabilities": {
            "bounding": capabilities,
            "effective": capabilities,
            "permitted": capabilities,
            "inheritable": [],
            "ambient": [],
        },
        # Other runtimes are started with them: root of the host may not raise a limit in a namespace that it did not
        # make, unless it has CAP_SYS_RESOURCE, which root of a container has not.
        "rlimits": [{"type": kind, "hard": most, "soft": most} for kind, most in facts.rlimits.items()]
        if facts.gvisor
        else [],
        "noNewPrivileges": True,
        "oomScoreAdj": 0,
    }


def _resources(limits: SandboxLimits, facts: HostFacts) -> dict[str, Any]:
    memory: dict[str, int] = {"limit": limits.memory_bytes}
    if facts.swap_accounting:
        memory["swap"] = limits.memory_bytes  # memory and swap together: no swap on top
    return {
        "devices": [{"allow": False, "access": "rwm"}],
        "memory": memory,
        "cpu": {"period": 100_000, "quota": max(1_000, int(limits.cpus * 100_000))},
        "pids": {"limit": limits.pids * (GVISOR_TASKS if facts.gvisor else 1)},
    }


def _mount(target: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": list(options)}


def _bind(source: Path, target: str, mode: str) -> dict[str, Any]:
    return _mount(target, "bind", str(source), "bind", mode, "nosuid", "nodev", "private")


def read_only(source: Path, target: str) -> dict[str, Any]:
    """A host folder that a sandbox may look into."""
    return _bind(source, target, "ro")


_SYSTEM_MOUNTS = (
    _mount("/proc", "proc", "proc", "nosuid", "nodev", "noexec"),
    _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=64k"),
    _mount(
        "/dev/pts",
        "devpts",
        "devpts",
        *("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", f"max={TERMINALS}"),
    ),
    _mount("/dev/shm", "tmpfs", "shm", "nosuid", "nodev", "noexec", "mode=1777", "size=256m"),  # noqa: S108
    _mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "nodev", "noexec"),
)
_CGROUPS = _mount("/sys/fs/cgroup", "cgroup", "cgroup", "nosuid", "nodev", "noexec", "relatime", "ro")


def _system_files(facts: HostFacts) -> list[dict[str, Any]]:
    """/sys is made of the few folders that programs need; gVisor has one of its own make."""
    if facts.gvisor:
        return [_mount("/sys", "sysfs", "sysfs", "nosuid", "nodev", "noexec", "ro"), _CGROUPS]
    shown = (_mount(path, "bind", path, "bind", "ro", "nosuid", "nodev", "noexec", "private") for path in facts.shown)
    root = _mount("/sys", "tmpfs", "tmpfs", "nosuid", "nodev", "noexec", "ro", "mode=755", "size=64k")
    return [root, *shown, _CGROUPS]
