"""The engine: how it is reached, what it offers, and the sandbox image in it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiodocker import Docker
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError
from yarl import URL

from cubicle.drivers.docker.config import INSTANCE, NAME, EngineFacts
from cubicle.guest import bundle
from cubicle.images import export
from cubicle.images.store import BuiltImage, ImageError, ImageStore
from cubicle.machine.errors import SandboxError, Unusable
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

LOCAL = "unix:///var/run/docker.sock"
REPOSITORY = "cubicle-sandbox"
_CALL_SECONDS = 60.0
_IMPORT_SECONDS = 1800.0
_CHUNK = 1024 * 1024
_PUT_TRIES, _PUT_PAUSE = 10, 0.3
_TRIAL_BYTES = 64 * 1024**2
_ORDINARY = ("", "runc", "crun", "youki", "io.containerd.runc.v2")
"""Runtimes whose containers are processes of the engine's own kernel."""

_MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}
"""Podman names machines as Go does, Docker as the kernel does."""

_REMAPPED = re.compile(r"/(\d+)\.\d+$")
GVISOR_ARGUMENTS = ("--network=none", "--overlay2=none", "--host-uds=create")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where the engine listens."""

    url: str = LOCAL
    certificates: Path | None = None
    """Folder with ca.pem, cert.pem and key.pem, for a TCP address."""

    @property
    def local(self) -> bool:
        """Whether containers can mount folders of this machine."""
        return self.url.startswith("unix://")

    def client(self) -> Docker:
        """A client whose calls are limited in time and not in number: each stream to a guest is one that stays."""
        limit = aiohttp.ClientTimeout(total=_CALL_SECONDS, sock_connect=10)
        if self.local:
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(self.url.removeprefix("unix://"), limit=0)
            return Docker(url="unix://localhost", connector=connector, timeout=limit)
        if self.url.startswith("ssh://"):
            return Docker(url=self.url, timeout=limit)
        place = self.url.split("://", 1)[-1]
        if self.certificates is None:
            return Docker(url=f"http://{place}", connector=aiohttp.TCPConnector(limit=0), timeout=limit)
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        context.load_cert_chain(self.certificates / "cert.pem", self.certificates / "key.pem")
        connector = aiohttp.TCPConnector(limit=0, ssl=context)
        return Docker(url=f"https://{place}", connector=connector, timeout=limit)


@dataclass(frozen=True, slots=True)
class EngineImage:
    """The image of a new sandbox, in the engine."""

    reference: str
    digest: str
    environment: Mapping[str, str]
    guest: bytes


async def examine(client: Docker, runtime: str) -> tuple[EngineFacts, bool]:
    """What the engine offers, and whether a guest in it can make a socket that the engine's host sees.

    Raises Unusable, in one sentence.
    """
    try:
        info: Mapping[str, Any] = await client.system.info()
    except (DockerError, OSError, aiohttp.ClientError, TimeoutError) as error:
        raise Unusable(
            f"No Docker engine answers ({_brief(error)}): start it, or set DOCKER_HOST to where it listens."
        ) from error
    sockets, gvisor = runtime in _ORDINARY, False
    if runtime:
        known = info.get("Runtimes") or {}
        if runtime not in known:
            names = ", ".join(sorted(known)) or "none"
            raise Unusable(f"The Docker engine has no runtime {runtime} (it has {names}): add it to its daemon.json.")
        gvisor = "runsc" in runtime or "runsc" in str(known[runtime].get("path", ""))
        if gvisor:
            sockets = _gvisor_sockets(runtime, known[runtime].get("runtimeArgs") or [])
    machine = str(info.get("Architecture", ""))
    facts = EngineFacts(
        machine=_MACHINES.get(machine, machine),
        runtime=runtime,
        gvisor=gvisor,
        user_namespace=any("name=userns" in option for option in info.get("SecurityOptions") or []),
        disk_quota=_has_quota(info),
        private_cgroups=bool(info.get("CgroupVersion")),
        podman="BuildahVersion" in info,
    )
    return facts, sockets


def _gvisor_sockets(runtime: str, arguments: list[str]) -> bool:
    """Whether this gVisor lets the guest make its socket. Raises Unusable if it would forget files at each stop."""
    flat = {argument.lstrip("-") for argument in arguments}
    if "overlay2=none" not in flat:
        wanted = ", ".join(f'"{argument}"' for argument in GVISOR_ARGUMENTS)
        raise Unusable(
            f"The runtime {runtime} would lose a sandbox's files at each stop: "
            f'give it "runtimeArgs": [{wanted}] in the engine\'s daemon.json.'
        )
    return bool(flat & {"host-uds=create", "host-uds=all"})


def _has_quota(info: Mapping[str, Any]) -> bool:
    """Whether the storage may be able to limit one container: overlay2 is on XFS alone, and there only if its quota is
    switched on (`pquota`), which the engine does not tell. `limits_disks` tries."""
    status = dict(pair for pair in info.get("DriverStatus") or [] if len(pair) == 2)
    driver = info.get("Driver")
    return driver in ("btrfs", "zfs") or (driver == "overlay2" and status.get("Backing Filesystem") == "xfs")


async def volume_names(client: Docker, instance: str) -> set[str]:
    """The sandboxes of which there are volumes."""
    listed = await client.volumes.list(filters={"label": [f"{INSTANCE}={instance}"]})  # type: ignore[no-untyped-call]
    names = {(volume.get("Labels") or {}).get(NAME) for volume in listed.get("Volumes") or []}
    return {str(name) for name in names - {None}}


async def volume_bytes(client: Docker, instance: str) -> dict[str, int]:
    """How much each sandbox of a service has in its volumes. Raises SandboxError."""
    try:
        told = await client._query_json("system/df")
    except (DockerError, OSError, aiohttp.ClientError, TimeoutError) as error:
        raise SandboxError(f"The Docker engine does not tell about its volumes: {_brief(error)}.") from error
    found: dict[str, int] = {}
    for volume in told.get("Volumes") or []:
        labels = volume.get("Labels") or {}
        if labels.get(INSTANCE) == instance:
            size = max(0, (volume.get("UsageData") or {}).get("Size", 0))
            found[labels[NAME]] = found.get(labels[NAME], 0) + size
    return found


async def limits_disks(client: Docker, reference: str) -> tuple[bool, int]:
    """Whether the engine takes a disk limit, which a container that is never started shows; and how many bytes of the
    image the limit counts."""
    counted = 0
    if (await client.system.info()).get("Driver") == "btrfs":
        counted = int((await client.images.inspect(reference))["Size"])
    size = {"size": str(_TRIAL_BYTES + counted)}
    try:
        trial = await client.containers.create(
            {"Image": reference, "Cmd": ["true"], "HostConfig": {"StorageOpt": size}}
        )
    except DockerError as error:
        log.info("the engine's storage limits no disk, so a watchdog does: %s", error.message)
        return False, 0
    await trial.delete(force=True)
    return True, counted


async def resume(container: DockerContainer, *, local: bool) -> bool:
    """Let a container run on that is paused, or whose first process a signal has stopped; whether that was so."""
    state = (await container.show())["State"]
    if state.get("Paused"):
        await container.unpause()
        return True
    if not state.get("Running"):
        return False
    pid = int(state.get("Pid") or 0)
    # On this host the kernel says it. Of a gVisor that stands still, the engine would ask in vain.
    known = await asyncio.to_thread(_process_state, pid, container.id) if local else ""
    if not (known or await _listed_state(container, pid)).startswith(("T", "t")):
        return False
    try:
        if known:
            os.kill(pid, signal.SIGCONT)
            return True
    except PermissionError:
        pass
    await container.kill(signal="SIGCONT")
    return True


async def _listed_state(container: DockerContainer, pid: int) -> str:
    """The state of a process as the engine lists it."""
    answer = await container.docker._query_json(f"containers/{container.id}/top", params={"ps_args": "-eo pid,stat"})
    return next((str(row[1]) for row in answer["Processes"] if row[0] == str(pid)), "")


def _process_state(pid: int, container_id: str) -> str:
    """The state of a process of this host; empty if it is not this container's."""
    process = Path("/proc", str(pid))
    try:
        signs = (process / "cgroup").read_bytes() + (process / "cmdline").read_bytes()
        state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return state if container_id.encode() in signs else ""


async def put(container: DockerContainer, root: str, archive: bytes) -> None:
    """Unpack an archive in a container that is down: Podman takes its file system away a moment after it says so."""
    for rest in reversed(range(_PUT_TRIES)):
        try:
            await container.put_archive(root, archive)  # type: ignore[no-untyped-call]
            return
        except DockerError:
            if not rest:
                raise
            await asyncio.sleep(_PUT_PAUSE)


async def ensure_image(client: Docker, store: ImageStore, name: str) -> EngineImage:
    """The image that SANDBOX_IMAGE names: of this machine's store, brought to the engine if it is not there; else one
    that the engine has by that name. Raises Unusable."""
    try:
        base = await asyncio.to_thread(store.resolve, name)
    except ImageError as error:
        return await _engine_image(client, name, error)
    reference = f"{REPOSITORY}:{base.digest[:24]}"
    if await _inspect(client, reference) is None:
        log.info("bringing the sandbox image to the Docker engine", extra={"image": reference})
        await _import(client, base, reference)
    guest = await asyncio.to_thread(_compiled_guest, base.rootfs)
    return EngineImage(reference, base.digest, await asyncio.to_thread(lambda: base.environment), guest)


async def _engine_image(client: Docker, name: str, missing: ImageError) -> EngineImage:
    for reference in (name, f"{REPOSITORY}:{name}"):
        found = await _inspect(client, reference)
        if found is not None:
            variables = dict(word.split("=", 1) for word in found["Config"].get("Env") or [] if "=" in word)
            guest = await asyncio.to_thread(bundle.build)
            return EngineImage(reference, str(found["Id"]).removeprefix("sha256:"), variables, guest)
    raise missing


async def _inspect(client: Docker, reference: str) -> dict[str, Any] | None:
    try:
        return await client.images.inspect(reference)
    except DockerError as error:
        if error.status in (400, 404):
            return None
        raise Unusable(f"The Docker engine does not tell about its images: {error.message}.") from error


async def _import(client: Docker, base: BuiltImage, reference: str) -> None:
    """`docker import`, from a pipe: the image is never whole on either side."""
    reader, writer = os.pipe()
    task = start_task(asyncio.to_thread(_write, base, writer), name="export of an image")
    changes = (await asyncio.to_thread(export.docker_changes, base))[1::2]
    # Name and tag in one word, as the docker command sends them: Podman does not read a tag apart.
    query = [("fromSrc", "-"), ("repo", reference), *(("changes", change) for change in changes)]
    try:
        async with client._query(
            URL("images/create").with_query(query),
            "POST",
            data=_read(reader),
            headers={"Content-Type": "application/x-tar"},
            timeout=aiohttp.ClientTimeout(total=_IMPORT_SECONDS),
        ) as response:
            await response.read()
        await task
    except (DockerError, OSError, aiohttp.ClientError) as error:
        raise Unusable(f"The sandbox image could not be brought to the Docker engine: {_brief(error)}.") from error
    finally:
        os.close(reader)
        await asyncio.gather(task, return_exceptions=True)


def _write(base: BuiltImage, descriptor: int) -> None:
    with open(descriptor, "wb") as pipe:
        export.write_tar(base, pipe)


async def _read(descriptor: int) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(os.read, descriptor, _CHUNK):
        yield chunk


def _compiled_guest(rootfs: Path) -> bytes:
    """Compiled by the image's own Python, it starts in half the time; where that cannot run, it compiles itself."""
    try:
        return bundle.build(["chroot", str(rootfs), "/usr/bin/python3"])
    except (OSError, subprocess.SubprocessError):
        return bundle.build()


def _brief(error: BaseException) -> str:
    said = error.message if isinstance(error, DockerError) else getattr(error, "strerror", None) or str(error)
    return " ".join(str(said).split())[:300] or type(error).__name__


async def root_of_containers(client: Docker, facts: EngineFacts) -> int:
    """The host's id of the root user in containers: an engine with user namespaces names its folder after it."""
    if not facts.user_namespace:
        return 0
    found = _REMAPPED.search(str((await client.system.info()).get("DockerRootDir", "")))
    return int(found.group(1)) if found else 0
