"""The Docker driver: each sandbox is a container with the guest in it and two volumes. The engine's objects are the
truth; a driver object finds its sandboxes among them by label."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiodocker import Docker
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError

from cubicle.drivers.common import seccomp, unix_sockets
from cubicle.drivers.common.completion import complete, in_thread
from cubicle.drivers.common.instance import instance_of
from cubicle.drivers.common.one_host import OneHost
from cubicle.drivers.docker import config, engine, trash
from cubicle.drivers.docker.checks import sharing
from cubicle.drivers.docker.cleaning import Cleaner
from cubicle.drivers.docker.config import EngineFacts
from cubicle.drivers.docker.engine import EngineAddress, EngineImage
from cubicle.drivers.docker.engine_errors import ENGINE_ERRORS, last_words, plain, unless, why
from cubicle.drivers.docker.far_guests import FarGuests
from cubicle.drivers.docker.records import DockerHome, DockerRecords, word
from cubicle.guest import bundle
from cubicle.images.store import ImageStore
from cubicle.machine.errors import CannotRescue, NotRunning, OwnedByAnother, OwnerHasSandbox, SandboxError, StartFailed
from cubicle.machine.upload_folder import UploadFolder
from cubicle.sandbox.driver import Capabilities, DriverHost, SandboxLimits, SandboxSeen, State
from cubicle.sandbox.lost_found import Lost
from cubicle.sandbox.trash import Discarded, TrashNote
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

_MAX_CONCURRENT_STARTS = 6
_GUEST_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_STOP_SECONDS = 20.0
_DELETE_SECONDS = 60.0
_WATCH_SECONDS = 15.0
_DEFAULT_LIMITS = SandboxLimits()
_DEFAULT_ADDRESS = EngineAddress()


class DockerDriver(OneHost):
    """The Driver protocol on a Docker engine."""

    def __init__(
        self,
        data_dir: Path,
        store: ImageStore,
        image: str,
        *,
        limits: SandboxLimits = _DEFAULT_LIMITS,
        runtime: str = "",
        address: EngineAddress = _DEFAULT_ADDRESS,
        agents: Path | None = None,
        read_only: bool = False,
        network: str = "",
    ) -> None:
        root = Path(os.path.realpath(data_dir))
        self._instance = instance_of(root)
        self._records = DockerRecords(root / "docker")
        self._store = store
        self._wanted_image = image
        self._limits = limits
        self._runtime = runtime
        self._address = address
        self._agents = agents
        self._read_only = read_only
        self._network = network
        self.far = FarGuests()
        self._starts = asyncio.Semaphore(_MAX_CONCURRENT_STARTS)
        self._starting: set[str] = set()
        self._ids: dict[str, str] = {}
        self._watch: asyncio.Task[None] | None = None
        self._first_id = 0
        self._client: Docker
        self._image: EngineImage
        self.facts: EngineFacts
        self.by_socket = False
        """Whether guests are reached by a socket of this machine; else as `far` says."""

    async def open(self) -> None:
        self._client = self._address.client()
        try:
            self.facts, sockets_work = await engine.examine(self._client, self._runtime)
            self.by_socket = sockets_work and self._address.local
            if self._address.local:
                self.facts = await in_thread(config.facts_of_host, self.facts)
            self._image = await engine.ensure_image(self._client, self._store, self._wanted_image)
            if self.facts.disk_quota:
                holds, counted = await engine.limits_disks(self._client, self._image.reference)
                self.facts = replace(self.facts, disk_quota=holds, counted_bytes=counted)
            await in_thread(self._records.open)
            if self.facts.podman and self._address.local:
                profile = json.dumps(seccomp.profile(self.facts.machine, queues=False))
                self.facts = replace(self.facts, seccomp_file=await in_thread(self._records.keep_seccomp, profile))
            self._first_id = await engine.root_of_containers(self._client, self.facts)
            if self.facts.gvisor and self._first_id:
                # gVisor looks for the folder of a socket as the root user of containers, runc as the host's.
                self.by_socket &= await in_thread(self._records.passable)
            if self._network and not self.by_socket:
                key_file, where = self._records.root / "guest-key.pem", (self._client, self._address, self.facts)
                await self.far.use_network(self._network, *where, key_file, self._instance)
            if not self.facts.gvisor:
                log.warning("%s; to close that: %s", (shared := sharing(self.facts)).found, shared.fix)
            if await in_thread(self._records.lock.is_alone):
                await self._clean()
                await in_thread(self._records.lock.join)
        except BaseException:
            await self.close()
            raise
        if not self.facts.disk_quota or self._read_only:
            self._watch = start_task(self._watch_disks(), name="disk watchdog")

    @property
    def capabilities(self) -> Capabilities:
        """The engine may be on another machine, or this process in a container of its own."""
        passes = self.by_socket and not self.facts.gvisor
        return Capabilities(remote=not self._address.local, fd_passing=passes, resumes=True)

    async def host(self) -> DriverHost:
        """The engine's own machine. Whoever has its socket may still sit in a container, or at the end of a tunnel."""
        try:
            info: Mapping[str, Any] = await self._client.system.info()
        except ENGINE_ERRORS as error:
            raise SandboxError(f"The Docker engine does not answer: {plain(error)}") from error
        kernel, name = str(info.get("KernelVersion", "")), info.get("Name")
        here = self._address.local and kernel == platform.release() and name == socket.gethostname()
        return DriverHost(kernel, here, self.far.targets(self._address))

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.far.close()
        self._records.close()
        await self._client.close()
        await self._client.connector.close()

    async def start(self, name: str, owner: str | None) -> None:
        found = await self._find(word(name))
        if found is not None and self._in_trash(found):
            raise StartFailed("This sandbox is in the trash.")
        if found is not None and found["State"] == "running":
            if owner is not None:
                await self._bind(found, owner)
            return
        self._starting.add(name)
        try:
            async with self._starts:
                await self._start(name, owner, found)
        finally:
            self._starting.discard(name)

    async def stop(self, name: str) -> None:
        found = await self._find(word(name))
        if found is not None:
            await self._resume_gvisor(name)
            await self._stop(name, found["Id"], "")

    async def delete(self, name: str) -> None:
        found = await self._find(word(name))
        if found is not None:
            await self._resume_gvisor(name)
        await complete(self._delete(name, found["Id"] if found else None))

    async def discard(self, name: str, note: TrashNote) -> None:
        found = await self._find(word(name))
        if found is not None and not self._in_trash(found):
            await self._stop(name, found["Id"], "")
            await complete(trash.discard(self._client, self._records, self._instance, found, note))

    async def discarded(self) -> Sequence[Discarded]:
        entries = [entry for entry in await self._list() if self._in_trash(entry)]
        return await in_thread(lambda: [trash.see(self._records, self._instance, entry) for entry in entries])

    async def restore(self, name: str, owner: str) -> None:
        found = await self._find(word(name))
        if found is None or not self._in_trash(found):
            raise NotRunning("There is no such sandbox in the trash.")
        if (other := await self.find(owner)) is not None:
            raise OwnerHasSandbox(other)
        await complete(trash.restore(self._client, self._records, self._instance, found, word(owner)))

    async def find(self, owner: str, hint: str = "") -> str | None:
        called = config.container_name(self._instance, "", word(owner))
        for entry in await self._list(named=called):
            if config.owner_of(self._instance, entry["Names"][0]) == owner:
                return str(entry["Labels"][config.NAME])
        if hint and await in_thread(self._records.home(hint).owner) == owner and await self._find(hint) is None:
            return hint  # only its volumes are left: the next start makes a container for them
        return None

    async def resume(self, name: str) -> bool:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await engine.resume(await self._container(name), local=self._address.local)
        except NotRunning:
            return False
        except ENGINE_ERRORS as error:
            raise SandboxError(f"The Docker engine does not answer: {plain(error)}.") from error

    async def _resume_gvisor(self, name: str) -> None:
        """The engine ends a gVisor by asking it to, which one that stands still does not hear."""
        if self.facts.gvisor:
            with contextlib.suppress(SandboxError):
                await self.resume(name)

    async def list(self) -> Sequence[SandboxSeen]:
        entries = await self._list()
        seen = list(await asyncio.gather(*(self._see(entry) for entry in entries if not self._in_trash(entry))))
        names = {str(entry["Labels"][config.NAME]) for entry in entries}
        return [*seen, *await in_thread(self._see_without_container, names, {one.owner for one in seen})]

    def _see_without_container(self, names: set[str], owners: set[str | None]) -> Sequence[SandboxSeen]:
        """Chats whose container somebody has removed: their uploads are in a volume, for a new one."""
        found = []
        for name in self._records.names():
            owner = self._records.home(name).owner()
            if name not in names and owner is not None and owner not in owners and name not in self._starting:
                found.append(SandboxSeen(name, owner, State.STOPPED, image=self._image.digest))
        return found

    async def rescue(self, lost: Lost, owner: str) -> str:
        raise CannotRescue("The Docker driver sets no sandbox aside; look at this one in its folder.")

    def uploads(self, name: str) -> UploadFolder | None:
        return None  # the engine may be on another host

    async def network(self, name: str) -> int | None:
        """The engine may be on another machine, or the service in a container of its own."""
        return None

    async def flush(self, name: str) -> None:
        """Its files are files of the host: where that has no space, the write itself is refused."""

    async def connect(self, name: str) -> socket.socket:
        with unix_sockets.not_running():
            if self.by_socket:
                return await unix_sockets.connect(self._records.home(name).socket, _CONNECT_SECONDS)
            return await self.far.connect(name, await self._container(name), _CONNECT_SECONDS)

    async def address(self, name: str) -> tuple[str, int] | None:
        with unix_sockets.not_running():
            return await self.far.address(await self._container(name))

    async def container_id(self, name: str) -> str:
        """The engine's id of a sandbox's container. Raises NotRunning."""
        if name not in self._ids and await self._find(word(name)) is None:
            raise NotRunning("There is no such sandbox.")
        return self._ids[name]

    async def _start(self, name: str, owner: str | None, found: dict[str, Any] | None) -> None:
        home = self._records.home(name)
        fresh = found is None and not await in_thread(home.path.exists)
        try:
            if found is not None and owner is not None:
                await self._bind(found, owner)
            await in_thread(home.make, self._first_id)
            if owner is not None:
                await in_thread(home.bound, owner)
            await self._bring_up(home, owner, found["Id"] if found else None)
        except BaseException as error:
            # Also when cancelled: whatever came up goes down again before the caller hears of it.
            reason = plain(error)
            await complete(self._take_down(home, fresh, reason))
            if isinstance(error, DockerError) and error.status == 409 and found is None:
                raise OwnerHasSandbox(await self.find(str(owner)) or "") from error
            if isinstance(error, ENGINE_ERRORS):
                log.warning("sandbox %s could not be started: %s", name, error)
                raise StartFailed(f"The sandbox could not be started: {reason}.") from error
            raise

    async def _bring_up(self, home: DockerHome, owner: str | None, container_id: str | None) -> None:
        if container_id is None:
            wanted = config.ContainerSpec(
                instance=self._instance,
                name=home.name,
                image=self._image.reference,
                image_digest=self._image.digest,
                environment=self._image.environment,
                limits=self._limits,
                socket_dir=home.socket_dir if self.by_socket else None,
                agents=await in_thread(self._shared_agents),
                read_only=self._read_only,
                tcp=self.far.terms(),
            )
            called = config.container_name(self._instance, home.name, owner)
            made = await complete(self._client.containers.create(config.container(wanted, self.facts), name=called))
            container_id = self._ids[home.name] = made.id
        container = self._client.containers.container(container_id)
        told: dict[str, Any] = await container.show()
        root = config.PRIVATE if told["HostConfig"].get("ReadonlyRootfs") else "/"
        programs = await self.far.programs(self.facts.machine)
        await engine.put(container, root, config.guest_archive(self._image.guest, root, programs))
        await in_thread(home.socket.unlink, missing_ok=True)
        await container.start()
        await in_thread(home.began, bundle.digest(self._image.guest))
        await self._await_guest(home, container)

    def _shared_agents(self) -> Path | None:
        """Where the agents lie, if the engine is on this machine and so sees them."""
        return self._agents if self._address.local and self._agents and self._agents.is_dir() else None

    async def _await_guest(self, home: DockerHome, container: DockerContainer) -> None:
        deadline = time.monotonic() + _GUEST_SECONDS
        with contextlib.suppress(OSError):
            if not self.by_socket:
                await self.far.wait_for(home.name, container, _GUEST_SECONDS)
                return
        while time.monotonic() < deadline and (await container.show())["State"]["Running"]:
            for _ in range(50):
                with contextlib.suppress(OSError):
                    (await unix_sockets.connect(home.socket, 1.0)).close()
                    return
                await asyncio.sleep(0.01)
        raise StartFailed(f"The sandbox's guest did not come up: {await last_words(container)}.")

    async def _bind(self, found: dict[str, Any], owner: str) -> None:
        """Give a sandbox to an owner for good. An owner has one sandbox, a sandbox one owner."""
        now = config.owner_of(self._instance, found["Names"][0])
        if now == word(owner):
            return
        if now is not None:
            raise OwnedByAnother
        try:
            container = self._client.containers.container(found["Id"])
            await container.rename(config.container_name(self._instance, "", owner))
        except DockerError as error:
            if error.status == 409:
                raise OwnerHasSandbox(await self.find(str(owner)) or "") from error
            raise StartFailed(f"The sandbox could not be given to its chat: {plain(error)}.") from error
        try:
            await in_thread(self._records.home(found["Labels"][config.NAME]).bound, owner)
        except OSError as error:
            raise StartFailed(f"The sandbox could not be given to its chat: {plain(error)}.") from error

    async def _take_down(self, home: DockerHome, fresh: bool, reason: str) -> None:
        container_id = self._ids.get(home.name)
        if fresh:
            await self._delete(home.name, container_id)
        elif container_id is not None:
            await self._stop(home.name, container_id, reason)

    async def _stop(self, name: str, container_id: str, reason: str) -> None:
        """End everything of it: all its processes are in the pid namespace of the first and die with it."""
        home = self._records.home(name)
        container = self._client.containers.container(container_id)
        await in_thread(home.ended, reason)
        try:
            async with asyncio.timeout(_STOP_SECONDS):  # the client sets no limits for these calls
                with unless(304, 404, 409):
                    await container.kill(signal="SIGKILL")
                await container.wait(condition="not-running")
        except TimeoutError:
            raise SandboxError("The sandbox's processes could not be ended.") from None
        except ENGINE_ERRORS as error:
            if not isinstance(error, DockerError) or error.status != 404:
                raise SandboxError(f"The sandbox could not be stopped: {plain(error)}.") from error

    async def _delete(self, name: str, container_id: str | None) -> None:
        try:
            if container_id is not None:
                with unless(404, 409):
                    async with asyncio.timeout(_DELETE_SECONDS):
                        await self._client.containers.container(container_id).delete(force=True)
            for volume in config.volumes(self._instance, name).values():
                with unless(404):
                    await self._client._query_json(f"volumes/{volume}", method="DELETE", params={"force": True})
        except ENGINE_ERRORS as error:
            raise SandboxError(f"The sandbox could not be removed: {plain(error)}.") from error
        self._ids.pop(name, None)
        await in_thread(self._records.home(name).remove)
        await in_thread(self._records.forget_note, name)

    def _in_trash(self, entry: dict[str, Any]) -> bool:
        return config.in_trash(self._instance, entry["Names"][0])

    async def _list(self, *, name: str = "", named: str = "", **options: Any) -> Sequence[dict[str, Any]]:
        """Containers of this driver: of one sandbox by its name, or by the container's own."""
        filters = {"label": [f"{config.INSTANCE}={self._instance}"]}
        if name:
            filters["label"].append(f"{config.NAME}={name}")
        if named:
            filters["name"] = [f"^/?{named}$"]
        try:
            found = await self._client.containers.list(all=1, filters=filters, **options)
        except ENGINE_ERRORS as error:
            raise SandboxError(f"The Docker engine does not answer: {plain(error)}.") from error
        return [container._container for container in found]

    async def _find(self, name: str) -> dict[str, Any] | None:
        for entry in await self._list(name=name):
            self._ids[name] = entry["Id"]
            return entry
        self._ids.pop(name, None)
        return None

    async def _container(self, name: str) -> DockerContainer:
        return self._client.containers.container(await self.container_id(name))

    async def _see(self, entry: dict[str, Any]) -> SandboxSeen:
        name, image = entry["Labels"][config.NAME], entry["Labels"].get(config.IMAGE, "")
        home = self._records.home(name)
        state, reason = State.STOPPED, ""
        if name in self._starting:
            state = State.STARTING
        elif entry["State"] == "running":
            state = State.RUNNING
        else:
            end = await in_thread(lambda: home.end)
            reason = await why(self._client.containers.container(entry["Id"])) if end is None else end
            state = State.FAILED if reason else State.STOPPED
        guest = await in_thread(lambda: home.guest)
        terms = config.terms(self._limits, self.facts, read_only=self._read_only, tcp=self.far.terms())
        made = (image, guest or bundle.digest(self._image.guest), entry["Labels"].get(config.TERMS))
        current = made == (self._image.digest, bundle.digest(self._image.guest), terms)
        return SandboxSeen(name, config.owner_of(self._instance, entry["Names"][0]), state, reason, image, current)

    async def _clean(self) -> None:
        made = [entry for entry in await self._list() if not self._in_trash(entry)]
        in_trash = {word(entry["Labels"][config.NAME]) for entry in await self._list() if self._in_trash(entry)}
        cleaner = Cleaner(self._records, self._instance, self._first_id, self._delete)
        await cleaner.clean(made, in_trash, await engine.volume_names(self._client, self._instance))

    async def _watch_disks(self) -> None:
        """Stop what is over its limit, where the engine's storage cannot refuse the write itself."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            with contextlib.suppress(SandboxError):
                volumes = await engine.volume_bytes(self._client, self._instance) if self._read_only else {}
                for entry in await self._list(size=1):
                    used = entry.get("SizeRw", 0) + volumes.get(entry["Labels"][config.NAME], 0)
                    if entry["State"] == "running" and used > self._limits.disk_bytes:
                        reason = f"it used more than its {self._limits.disk_bytes // 1024**2} MiB of disk"
                        with contextlib.suppress(SandboxError):  # the next one is stopped all the same
                            await self._stop(entry["Labels"][config.NAME], entry["Id"], reason)
