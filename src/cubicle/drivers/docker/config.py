"""The container of a sandbox, as the engine's API wants it told: pure functions."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cubicle.drivers.common import container_programs, seccomp, seccomp_filter
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
    at_most,
)
from cubicle.drivers.common.hidden import USUAL, hidden
from cubicle.guest.guest_config import GuestConfig
from cubicle.sandbox.driver import SandboxLimits

SOCKET = "/run/cubicle/host/guest.sock"
INSTANCE = "cubicle.instance"
NAME = "cubicle.name"
IMAGE = "cubicle.image"
TERMS = "cubicle.terms"

GUEST_PORT = 8000
_SHM_BYTES = 256 * 1024**2
_LOG_BYTES = "64k"
PRIVATE = GUEST.rsplit("/", 1)[0]
_KEPT = ("/home/assistant", "/mnt/user-data/outputs", PRIVATE)
"""What is written outside of WRITABLE and outlives a stop: volumes, where the root can only be read."""
_NET_ADMIN, _SETPCAP = 12, 8
_NAME_SERVER = "127.0.0.11"
"""The engine's own, on the loopback of a container with a network: it would ask the world."""
_ON_TCP = f"""
set -e
cd {PRIVATE}
/usr/bin/python3 -I -S network_rules.py {GUEST_PORT} {_NAME_SERVER}
exec /usr/bin/python3 -I -S launcher.py {PRIVATE} "$@" {_NET_ADMIN} {_SETPCAP}
"""
_IN_MEMORY = {
    "/tmp": "rw,exec,nosuid,nodev,mode=1777",  # noqa: S108 - of the sandbox
    "/var/tmp": "rw,exec,nosuid,nodev,mode=1777",  # noqa: S108
    "/run": "rw,nosuid,nodev,noexec,mode=755",
}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the description of a container has to know about its engine."""

    machine: str
    runtime: str = ""
    gvisor: bool = False
    user_namespace: bool = False
    """Whether root of a container is another user than root of the host."""
    disk_quota: bool = False
    """Whether the engine's storage refuses writes past a limit."""
    counted_bytes: int = 0
    """What such a limit counts besides what a sandbox writes: on btrfs, the image."""
    private_cgroups: bool = True
    podman: bool = False
    hidden: tuple[str, ...] = USUAL
    """What of /proc and /sys nobody in a sandbox may see."""
    seccomp_file: Path | None = None
    """Where the engine's host has the profile: Podman takes it as a file, Docker as the text itself."""


def facts_of_host(facts: EngineFacts) -> EngineFacts:
    """With what this kernel shows of itself, for an engine on the same machine."""
    return replace(facts, hidden=tuple(sorted({*hidden(), *USUAL})))


@dataclass(frozen=True, slots=True)
class TcpGuest:
    """A guest that is reached over TCP (tcp_guests.py)."""

    network: str
    """Of the engine."""
    keys: tuple[str, ...]
    """Of whom it obeys."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One sandbox, as its container is made."""

    instance: str
    name: str
    image: str
    image_digest: str
    environment: Mapping[str, str]
    limits: SandboxLimits
    socket_dir: Path | None
    """The folder of the host in which the guest listens; None where the host cannot reach one."""
    agents: Path | None = None
    """Programs of coding agents, if any are installed where the engine can see them."""
    read_only: bool = False
    """Whether the root file system can only be read: then what is to be kept lies in volumes, the rest in memory."""
    tcp: TcpGuest | None = None


def container_name(instance: str, name: str, owner: str | None) -> str:
    """A container is called by its owner's name once it has one: the engine gives a name once, and so keeps an owner
    from having two. Labels cannot be changed on a container that runs; names can."""
    return f"cubicle-{instance}-{owner}" if owner is not None else f"cubicle-{instance}-blank-{name}"


def trash_name(instance: str, name: str, owner: str | None) -> str:
    """What a container in the trash is called: its owner's own name is free, and known still."""
    return f"cubicle-{instance}-trash-{name}" + (f"-{owner}" if owner is not None else "")


def owner_of(instance: str, container: str) -> str | None:
    """The owner that a container's name tells; of one in the trash, the one that it had."""
    tail = container.lstrip("/").removeprefix(f"cubicle-{instance}-")
    if tail.startswith("trash-"):
        return tail.split("-", 2)[2] if tail.count("-") > 1 else None
    return None if tail.startswith("blank-") else tail


def in_trash(instance: str, container: str) -> bool:
    return container.lstrip("/").startswith(f"cubicle-{instance}-trash-")


def volumes(instance: str, name: str) -> dict[str, str]:
    """The named volumes that a sandbox may have, by the folder in which they are seen."""
    return {target: f"cubicle-{instance}-{name}-{target.rsplit('/', 1)[1]}" for target in (*WRITABLE, *_KEPT)}


def identity(instance: str, name: str) -> str:
    """What tells a guest on TCP from every other."""
    return f"{instance}-{name}"


def terms(limits: SandboxLimits, facts: EngineFacts, *, read_only: bool, tcp: TcpGuest | None = None) -> str:
    """What the settings say of a container and cannot be changed on it."""
    kind = f"{facts.runtime or 'default'} {'read-only' if read_only else 'writable'}"
    return f"{limits!r} {kind}" + (f" {hashlib.sha256(repr(tcp).encode()).hexdigest()[:16]}" if tcp else "")


def container(wanted: ContainerSpec, facts: EngineFacts) -> dict[str, Any]:
    """The body of `POST /containers/create`."""
    tcp = wanted.tcp
    config = GuestConfig(
        socket="" if tcp else SOCKET,
        tcp=GUEST_PORT if tcp else None,
        identity=identity(wanted.instance, wanted.name) if tcp else "",
        keys=list(tcp.keys) if tcp else [],
        uid=1000,
        gid=1000,
        home="/home/assistant",
        env=dict(wanted.environment),
        aliases=WRITABLE,
        spawn_helper=facts.gvisor,
    )
    program = ["/usr/bin/python3", "-I", "-S", GUEST, config.encode().decode()]
    if tcp:
        program = ["/bin/sh", "-c", _ON_TCP, "sh", json.dumps(RLIMITS), config.encode().decode()]
    return {
        "Image": wanted.image,
        "Hostname": "cubicle",
        "User": "0:0",
        "WorkingDir": "/",
        "Env": [f"PATH={PATH}"],
        "Entrypoint": program,
        "Cmd": [],
        "Labels": {
            INSTANCE: wanted.instance,
            NAME: wanted.name,
            IMAGE: wanted.image_digest,
            TERMS: terms(wanted.limits, facts, read_only=wanted.read_only, tcp=tcp),
        },
        "NetworkDisabled": tcp is None,
        "ExposedPorts": {f"{GUEST_PORT}/tcp": {}} if tcp else {},
        "HostConfig": _host_config(wanted, facts),
    }


def _host_config(wanted: ContainerSpec, facts: EngineFacts) -> dict[str, Any]:
    limits = wanted.limits
    config: dict[str, Any] = {
        "NetworkMode": "none",
        "IpcMode": "private",
        "CapDrop": ["ALL"],
        "CapAdd": [name.removeprefix("CAP_") for name in CAPABILITIES],
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges", *_seccomp(facts), *_masked(facts)],
        "MaskedPaths": list(facts.hidden),
        "ReadonlyPaths": list(READ_ONLY),
        "PidsLimit": limits.pids * (GVISOR_TASKS if facts.gvisor else 1),
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,  # memory and swap together: no swap on top
        "NanoCpus": int(limits.cpus * 1_000_000_000),
        "ShmSize": _SHM_BYTES,
        "Ulimits": _ulimits(facts),
        "Sysctls": SYSCTLS,
        "RestartPolicy": {"Name": "no"},
        "Init": False,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": _LOG_BYTES, "max-file": "1"}},
        "Mounts": _mounts(wanted),
    }
    if wanted.tcp is not None:
        # Its launcher closes the network, gives the two capabilities up, and puts our system call filter on itself.
        config["NetworkMode"] = wanted.tcp.network
        config["PortBindings"] = {f"{GUEST_PORT}/tcp": [{"HostIp": "", "HostPort": ""}]}
        config["CapAdd"] += ["NET_ADMIN", "SETPCAP"]
        config["SecurityOpt"] = ["no-new-privileges", *_masked(facts)]
        config["Dns"] = ["127.0.0.1"]
    if facts.private_cgroups:
        config["CgroupnsMode"] = "private"
    if facts.runtime:
        config["Runtime"] = facts.runtime
    if wanted.read_only:
        config |= {"ReadonlyRootfs": True, "Tmpfs": _IN_MEMORY}
    elif facts.disk_quota:
        config["StorageOpt"] = {"size": str(limits.disk_bytes + facts.counted_bytes)}
    return config


def _ulimits(facts: EngineFacts) -> list[dict[str, Any]]:
    """No engine may raise what it has itself, which is taken to be what this process has. Of open files Docker hands
    its own limit on; Podman asks for more than its own unless told."""
    told = {kind.removeprefix("RLIMIT_").lower(): at_most(kind, most) for kind, most in RLIMITS.items()}
    if facts.podman:
        told["nproc"] = at_most("RLIMIT_NPROC", 32_768)
    else:
        del told["nofile"]
    return [{"Name": name, "Soft": most, "Hard": most} for name, most in told.items()]


def _seccomp(facts: EngineFacts) -> list[str]:
    """A Podman that shares no folder with the service cannot be handed a profile, and applies its own."""
    if facts.podman:
        return [f"seccomp={facts.seccomp_file}"] if facts.seccomp_file else []
    return [f"seccomp={json.dumps(seccomp.profile(facts.machine, queues=False))}"]


def _masked(facts: EngineFacts) -> list[str]:
    """Podman does not heed `MaskedPaths`, and takes the same as an option."""
    return [f"mask={':'.join(path for path in facts.hidden if ':' not in path)}"] if facts.podman else []


def _mounts(wanted: ContainerSpec) -> list[dict[str, Any]]:
    """What commands may only read is a second time, writable, on a mount that only the guest passes."""
    found: list[dict[str, Any]] = []
    for target, volume in volumes(wanted.instance, wanted.name).items():
        options = {"Labels": {INSTANCE: wanted.instance, NAME: wanted.name}}
        common = {"Type": "volume", "Source": volume, "VolumeOptions": options}
        if target in WRITABLE:
            found.append({**common, "Target": WRITABLE[target]})
            found.append({**common, "Target": target, "ReadOnly": True})
        elif wanted.read_only:
            found.append({**common, "Target": target})
    if wanted.socket_dir is not None:
        target = SOCKET.rsplit("/", 1)[0]
        private = {"Propagation": "rprivate"}
        found.append({"Type": "bind", "Source": str(wanted.socket_dir), "Target": target, "BindOptions": private})
    if wanted.agents is not None:
        found.append({"Type": "bind", "Source": str(wanted.agents), "Target": AGENTS, "ReadOnly": True})
    return found


def tcp_programs(machine: str) -> dict[str, bytes]:
    """What a container needs whose guest is on TCP, by file name."""
    folder = Path(str(container_programs.__file__)).parent
    found = {name: (folder / name).read_bytes() for name in ("network_rules.py", "launcher.py")}
    return found | {f"seccomp-{machine}": seccomp_filter.compile_filter(machine)}


def guest_archive(guest: bytes, root: str = "/", more: Mapping[str, bytes] | None = None) -> bytes:
    """What is put into a container before it starts, below a folder: the guest, where only root can enter.

    gVisor mounts a file system in memory over an empty /tmp, where no disk limit holds: so it is not empty.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        folders = [(PRIVATE, 0o700), (f"{PRIVATE}/host", 0o700)]
        folders += [("/tmp/.X11-unix", 0o755)] if root == "/" else []  # noqa: S108 - of the sandbox
        for name, mode in folders:
            entry = tarfile.TarInfo(os.path.relpath(name, root))
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        programs = {GUEST: guest} | {f"{PRIVATE}/{name}": content for name, content in (more or {}).items()}
        for name, content in programs.items():
            entry = tarfile.TarInfo(os.path.relpath(name, root))
            entry.size, entry.mode = len(content), 0o600
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
