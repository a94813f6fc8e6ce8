"""What a Docker engine must have to hold sandboxes, and what fixes what it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiodocker import Docker
from aiodocker.exceptions import DockerError

from cubicle.drivers.common.checks import Check, Verdict
from cubicle.drivers.docker import engine
from cubicle.drivers.docker.config import EngineFacts
from cubicle.drivers.docker.engine import REPOSITORY, EngineAddress
from cubicle.images.store import ImageError, ImageStore
from cubicle.machine.errors import Unusable

_LIMITS = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "CPU"}


@dataclass(frozen=True, slots=True)
class DockerSubject:
    """What the settings ask of an engine."""

    address: EngineAddress
    runtime: str
    bases: ImageStore
    image: str
    network: str = ""


async def run(subject: DockerSubject) -> list[Check]:
    """Every check, from the engine up; those that need what is missing are left out."""
    client = subject.address.client()
    try:
        try:
            facts, sockets = await engine.examine(client, "")
        except Unusable as error:
            fix = "systemctl start docker, or DOCKER_HOST=unix:///… of the engine that runs"
            return [Check("engine", Verdict.MISSING, str(error), fix)]
        info: Mapping[str, Any] = await client.system.info()
        found = [_engine(subject, info, facts)]
        try:
            facts, sockets = await engine.examine(client, subject.runtime)
        except Unusable as error:
            fix = "add it to runtimes in the engine's daemon.json (docs/docker.md), and restart the engine"
            return [*found, Check("runtime", Verdict.MISSING, str(error), fix)]
        return [
            *found,
            Check(
                "runtime", Verdict.GOOD, subject.runtime or f"{info.get('DefaultRuntime', '')} (the engine's default)"
            ),
            _reach(subject, sockets),
            await _image(client, subject),
            _user_namespace(facts),
            sharing(facts),
            _cgroups(info),
            _disk(facts),
        ]
    finally:
        await client.close()
        await client.connector.close()


def _engine(subject: DockerSubject, info: Mapping[str, Any], facts: EngineFacts) -> Check:
    kind = "Podman" if facts.podman else "Docker"
    return Check("engine", Verdict.GOOD, f"{kind} {info.get('ServerVersion', '')} at {subject.address.url}")


def _reach(subject: DockerSubject, sockets: bool) -> Check:
    if sockets and subject.address.local:
        return Check("guests", Verdict.GOOD, "reached by a socket in DATA_DIR")
    if subject.network:
        said = f"reached over TCP at ports of the engine's machine (network {subject.network})"
        return Check("guests", Verdict.GOOD, said)
    return Check("guests", Verdict.GOOD, "reached by one exec stream for each connection")


async def _image(client: Docker, subject: DockerSubject) -> Check:
    try:
        base = await asyncio.to_thread(subject.bases.resolve, subject.image)
        reference, built = f"{REPOSITORY}:{base.digest[:24]}", True
    except ImageError:
        reference, built = subject.image, False
    for name in (reference, f"{REPOSITORY}:{subject.image}"):
        try:
            await client.images.inspect(name)
        except DockerError:
            continue
        return Check("image", Verdict.GOOD, f"{name} is in the engine")
    if built:
        return Check("image", Verdict.GOOD, f"{subject.image} is built; the first start brings it to the engine")
    fix = f"cubicle image build {subject.image}, or docker pull/import {subject.image}"
    return Check("image", Verdict.MISSING, f"neither this machine nor the engine has {subject.image}", fix)


def _user_namespace(facts: EngineFacts) -> Check:
    if facts.user_namespace or facts.gvisor:
        return Check("user namespace", Verdict.GOOD, "root of a sandbox is nobody on the engine's host")
    said = "root of a sandbox is root of the engine's host, without its capabilities"
    fix = '"userns-remap": "default" in the engine\'s daemon.json, and a restart of the engine'
    return Check("user namespace", Verdict.WEAK, said, fix)


def sharing(facts: EngineFacts) -> Check:
    """Whether the kernel tells the sandboxes of an engine apart when it counts what users take."""
    if facts.gvisor:
        return Check("shared resources", Verdict.GOOD, "each sandbox has a kernel of its own to take them from")
    short = "one sandbox can use up the inotify instances, terminals and descriptors in flight of the others"
    host = ", and the inotify instances of the engine's root" if facts.user_namespace else ", and their timers"
    return Check("shared resources", Verdict.WEAK, short + host, "DOCKER_RUNTIME=runsc (gVisor), or DRIVER=oci")


def _cgroups(info: Mapping[str, Any]) -> Check:
    lacking = [name for key, name in _LIMITS.items() if not info.get(key)]
    version = f"version {info.get('CgroupVersion') or 1}, driver {info.get('CgroupDriver', 'unknown')}"
    if not lacking:
        return Check("cgroups", Verdict.GOOD, f"{version}: memory, processes and CPU are limited")
    fix = "delegate these controllers to the engine, or run it as root"
    return Check("cgroups", Verdict.MISSING, f"{version}: no limit of {', '.join(lacking)}", fix)


def _disk(facts: EngineFacts) -> Check:
    if facts.disk_quota:
        return Check("disk limit", Verdict.GOOD, "the engine's storage may refuse writes; the first start tries it")
    fix = "put the engine's data on XFS mounted with pquota, btrfs or ZFS"
    return Check("disk limit", Verdict.WEAK, "a watchdog looks every 15 s and stops what is over", fix)
