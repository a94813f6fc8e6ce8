"""The embedded driver: each sandbox is a disk, an overlay on a shared base, and one container with the guest in it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from cubicle import record
from cubicle.drivers.common import unix_sockets
from cubicle.drivers.common.completion import complete, in_thread
from cubicle.drivers.common.instance import SharedLock, instance_of
from cubicle.drivers.common.one_host import OneHost
from cubicle.drivers.oci import (
    cleaning,
    disk,
    ext4,
    freezer,
    guests,
    host,
    rescue,
    runtimes,
    sandbox_lock,
    space,
    transparent_proxy,
)
from cubicle.drivers.oci.assembly import AssembledSandbox, Assembly, ImageBases
from cubicle.drivers.oci.cgroup_moves import CgroupMoves
from cubicle.drivers.oci.disk import DiskMode
from cubicle.drivers.oci.disk_watches import DiskWatches
from cubicle.drivers.oci.filled_template import FilledTemplates
from cubicle.drivers.oci.id_ranges import IdRanges, is_own
from cubicle.drivers.oci.identity import KernelIdentities
from cubicle.drivers.oci.look import DiskScan, is_up
from cubicle.drivers.oci.namespaces import NamespaceMaker
from cubicle.drivers.oci.process import ProcessId
from cubicle.drivers.oci.records import OciHome, OciRecords, OciRun
from cubicle.drivers.oci.runtimes import Runtime, RuntimeFailed
from cubicle.drivers.oci.trash import Trash
from cubicle.machine.errors import NoSpace, SandboxError, StartFailed, Unusable
from cubicle.machine.upload_folder import UploadFolder
from cubicle.record import BadRecord
from cubicle.sandbox.driver import Capabilities, DriverHost, SandboxLimits, SandboxSeen
from cubicle.sandbox.free_space import FreeSpace
from cubicle.sandbox.initial_files import InitialSource, nothing
from cubicle.sandbox.lost_found import Lost
from cubicle.sandbox.trash import Discarded, TrashNote
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

RUN_DIR = Path("/run/cubicle")
_MAX_CONCURRENT_STARTS = 8
_KILL_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_SOCKET_SECONDS = 20.0
_DEFAULT_LIMITS = SandboxLimits()
_HOST_PATH = re.compile(r"(?:/[^\s\"':/]+){2,}")


class OciDriver(OneHost):
    """The Driver protocol on OCI bundles."""

    def __init__(
        self,
        data_dir: Path,
        bases: ImageBases,
        image: str,
        first_id: int,
        *,
        limits: SandboxLimits = _DEFAULT_LIMITS,
        runtime: str = "",
        run_dir: Path = RUN_DIR,
        transparent: bool = False,
        agents: Path | None = None,
        free_space: FreeSpace | None = None,
        initial: InitialSource = nothing,
    ) -> None:
        root = Path(os.path.realpath(data_dir))
        instance = instance_of(root)
        self._records = OciRecords(root)
        self._trash = Trash(self._records)
        self._place = host.HostPath(run_dir / instance, f"/cubicle/{instance}", first_id)
        self._identities = KernelIdentities(IdRanges(run_dir / "ids"), NamespaceMaker(), first_id)
        self._bases = bases
        self._image = image
        self._limits = limits
        self._wanted_runtime = runtime
        self._wants_transparent = transparent
        self._agents, self._filled = agents, FilledTemplates(initial)
        self._space = free_space or FreeSpace(root, 0)
        self._starts = asyncio.Semaphore(_MAX_CONCURRENT_STARTS)
        self._moves = CgroupMoves()
        self._starting: set[str] = set()
        self._freezer = freezer.FreezerThreads()
        self._uploads: dict[str, UploadFolder] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._lock = SharedLock(self._records.root / "lock")
        self._probed, self._is_open = True, False
        self.runtime: Runtime
        self._assembly: Assembly

    @property
    def capabilities(self) -> Capabilities:
        """gVisor has a kernel of its own: no descriptor comes out of it, and nothing of the host reaches in."""
        shared = self._is_open and self.runtime.hands_over
        return Capabilities(
            fd_passing=shared,
            upload_folder=shared,
            network_namespace=shared,
            transparent_proxy=shared and self._wants_transparent and transparent_proxy.available(),
            resumes=True,
            freezes=shared,
            rescues=True,
            image_store=True,
        )

    async def host(self) -> DriverHost:
        return DriverHost(platform.release())

    @property
    def disk_mode(self) -> DiskMode:
        """How disks are limited here."""
        return self._assembly.disk_mode

    async def open(self) -> None:
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        if self._lock.held:
            if await in_thread(self._lock.is_alone):
                await in_thread(cleaning.leave, self._place)
                await in_thread(space.give_back, self._records.root)
            self._lock.close()
        await in_thread(self._identities.maker.close)
        self._freezer.close()

    async def start(self, name: str, owner: str | None) -> None:
        home = self._records.home(name)
        async with self._only_one_at(home):
            if await in_thread(self._trash.holds, name):
                raise StartFailed("This sandbox is in the trash.")
            if await in_thread(is_up, home):
                if owner is not None and home.owner() != owner:
                    await in_thread(self._check_blank, home)
                    await self._bind(home, owner)
                return
            await in_thread(self._space.require)
            self._starting.add(name)
            try:
                async with self._starts:
                    await self._start(home, owner)
            finally:
                self._starting.discard(name)

    async def stop(self, name: str) -> None:
        home = self._records.home(name)
        async with self._only_one_at(home):
            if home.path.exists():
                await in_thread(home.save_failure, "")
                await self._stop(home)

    async def delete(self, name: str) -> None:
        home = self._records.home(name)
        async with self._only_one_at(home):
            if home.path.exists():
                await self._stop(home)
                await in_thread(self._trash.delete, home)
            await in_thread(self._trash.purge, name)

    async def delete_blank(self, name: str) -> bool:
        home = self._records.home(name)
        async with self._only_one_at(home):
            if home.path.exists():
                if not await in_thread(self._records.is_blank, home):
                    return False
                await self._stop(home)
                await in_thread(self._trash.delete, home)
        return True

    async def purge(self, name: str) -> bool:
        return await in_thread(self._trash.purge, name)

    async def discard(self, name: str, note: TrashNote) -> None:
        home = self._records.home(name)
        async with self._only_one_at(home):
            if home.path.exists():
                await self._stop(home)
                await in_thread(self._trash.discard, home, note)

    async def discarded(self) -> Sequence[Discarded]:
        return await in_thread(self._trash.discarded)

    async def restore(self, name: str, owner: str) -> None:
        await in_thread(self._trash.restore, name, owner)

    async def find(self, owner: str, hint: str = "") -> str | None:
        return await in_thread(self._records.find, owner, hint)

    async def resume(self, name: str) -> bool:
        return await self._freezer.run(self._resume, self._records.home(name))

    async def freeze(self, name: str) -> bool:
        """All processes of a gVisor are one to the host: whether a program runs in it cannot be seen from here."""
        return self.capabilities.freezes and await self._freezer.run(self._freeze, self._records.home(name))

    async def give_memory_back(self, name: str) -> None:
        await in_thread(freezer.give_memory_back, self._cgroup(self._records.home(name)))

    async def list(self) -> Sequence[SandboxSeen]:
        return await in_thread(self._see_all)

    def uploads(self, name: str) -> UploadFolder | None:
        """gVisor keeps a view of its own of what lies in a folder: only its guest writes there."""
        home = self._records.home(name)
        if not home.socket.exists():
            return None
        path = self._assembly.disk(home, None).target / "uploads"
        return self._uploads.setdefault(name, UploadFolder(path, self._place.first_id))

    async def network(self, name: str) -> int | None:
        """gVisor has a network stack of its own, which no thread of the host can enter."""
        return await in_thread(self._network, self._records.home(name))

    def _network(self, home: OciHome) -> int | None:
        run = home.run()
        return run.process.network() if run is not None and self.runtime.hands_over else None

    async def flush(self, name: str) -> None:
        try:
            await in_thread(self._flush, self._records.home(name))
        except OSError as error:
            raise SandboxError(f"What was written did not reach the disk: {error.strerror}.") from error

    async def rescue(self, lost: Lost, owner: str) -> str:
        """Give a sandbox that was set aside to an owner; its name. Raises CannotRescue."""
        return await in_thread(rescue.rescue, self._records, lost, owner, self._assembly.today)

    async def connect(self, name: str) -> socket.socket:
        home = self._records.home(name)
        if self.capabilities.freezes:
            await self._freezer.run(freezer.thaw, self._cgroup(home))
        with unix_sockets.not_running():
            return await unix_sockets.connect(self._assembly.socket(home), _CONNECT_SECONDS)

    async def _open(self) -> None:
        await in_thread(host.require)
        await in_thread(self._records.make_folders)
        await in_thread(self._lock.join)
        await in_thread(self._place.make)
        trials = self._records.root / "trials.json"
        self.runtime = await host.choose(self._wanted_runtime, self._place, trials)
        self._assembly = await in_thread(self._assemble)
        self._is_open = True
        if await in_thread(self._lock.is_alone):
            await cleaning.clean(self._assembly)
            await in_thread(self._trash.finish)
            await in_thread(runtimes.remove_logs, self._place.stage)
            await in_thread(self._lock.join)
        watches = DiskWatches(
            self._records,
            space.SpaceWatch(self._records.root, self._place.stage, self._space, self._limits.disk_bytes),
            self._starting,
            mode=lambda: self.disk_mode,
            stop=self._stop_for,
            probe=self._probe_again,
        )
        self._watches = [start_task(watch(), name=name) for name, watch in watches.tasks.items()]

    async def _bind(self, home: OciHome, owner: str) -> None:
        try:
            await in_thread(self._records.bind, home, owner)
        except OSError as error:
            raise StartFailed(f"The sandbox could not be given to its chat: {_plain(error)}.") from error

    def _only_one_at(
        self, home: OciHome, seconds: float = sandbox_lock.BUSY_SECONDS
    ) -> AbstractAsyncContextManager[None]:
        return sandbox_lock.only_one_at(self._place.stage / host.BUSY, home.name, seconds)

    async def _start(self, home: OciHome, owner: str | None) -> None:
        fresh = not await in_thread(home.path.exists)
        try:
            if not fresh:
                await self._stop(home)
            await self._bring_up(home, owner)
        except BaseException as error:
            # Also when cancelled: whatever came up goes down again before the caller hears of it.
            await complete(self._take_down(home, fresh, _plain(error)))
            if isinstance(error, RuntimeFailed | BadRecord | OSError | subprocess.SubprocessError):
                log.warning("sandbox %s could not be started: %s", home.name, error)
                raise StartFailed(f"The sandbox could not be started: {_plain(error)}.") from error
            raise

    async def _bring_up(self, home: OciHome, owner: str | None) -> None:
        async with self._moves.quick():
            ready = await complete(asyncio.to_thread(self._assembly.prepare, home, owner), AssembledSandbox.close)
            try:
                await in_thread(record.remove, home.pid_file)
                listener = ready.listener.fileno() if ready.listener is not None else None
                own = is_own(ready.first_id)
                await self.runtime.run(home.name, ready.bundle, home.pid_file, listener, ready.output, keyring=own)
            finally:
                ready.close()
        run = await in_thread(self._assembly.settle, home, self.runtime.name, ready.first_id)
        if self.capabilities.transparent_proxy and (
            problem := await in_thread(transparent_proxy.capture, run.process.pid)
        ):
            log.warning("sandbox %s has no transparent proxy: %s", home.name, problem)
        if not self.runtime.hands_over:
            await self._find_socket(home, run.process)

    async def _take_down(self, home: OciHome, fresh: bool, reason: str) -> None:
        await self._stop(home)
        if fresh:
            await in_thread(self._assembly.remove, home)
        else:
            await in_thread(home.save_failure, reason)

    def _resume(self, home: OciHome) -> bool:
        run = home.run()
        if run is None or not run.process.alive:
            return False
        frozen = freezer.thaw(self._cgroup(home))
        return run.process.resume() or frozen

    def _freeze(self, home: OciHome) -> bool:
        run = home.run()
        if run is None or not run.process.alive:
            return False
        return freezer.freeze(self._cgroup(home), run.process.pid)

    def _cgroup(self, home: OciHome) -> str:
        return f"{self._place.cgroup}/{home.name}"

    async def _stop(self, home: OciHome) -> None:
        """End everything of it: all its processes are in the pid namespace of the first and die with it."""
        if folder := self._uploads.pop(home.name, None):
            await in_thread(folder.end)
        run = await in_thread(home.run)
        await in_thread(freezer.thaw, self._cgroup(home))
        if run is not None and not await run.process.kill(_KILL_SECONDS):
            raise SandboxError("The sandbox's processes could not be ended.")
        try:
            for runtime in await self._runtimes_of(home, run):
                await runtime.delete(home.name)
        except RuntimeFailed as error:
            raise SandboxError(f"The sandbox could not be cleared away: {_plain(error)}.") from error
        await in_thread(self._assembly.release, home)

    async def _runtimes_of(self, home: OciHome, run: OciRun | None) -> Sequence[Runtime]:
        """The runtime that a sandbox was started with: the setting may have changed since. All, if that is unknown."""
        if run is None or run.runtime != self.runtime.name:
            return await in_thread(cleaning.runtimes_of, self._place.stage, home, run) or [self.runtime]
        return [self.runtime]

    async def _find_socket(self, home: OciHome, process: ProcessId) -> None:
        """Wait for the socket that the guest makes itself."""
        deadline = time.monotonic() + _SOCKET_SECONDS
        while time.monotonic() < deadline and await in_thread(lambda: process.alive):
            with contextlib.suppress(OSError):
                (await unix_sockets.connect(self._assembly.socket(home), 1.0)).close()
                return
            await asyncio.sleep(0.01)
        raise StartFailed(f"The sandbox's guest did not come up: {self._assembly.last_words(home)}.")

    def _assemble(self) -> Assembly:
        try:
            base = self._bases.resolve(self._image)
        except SandboxError as error:
            raise Unusable(str(error)) from error
        mode = self._probe_disk()
        return Assembly(
            records=self._records,
            place=self._place,
            bases=self._bases,
            base=base,
            guest=guests.ensure(self._records.root / "guest", self._place.stage / "guest", base.digest, base.rootfs),
            limits=self._limits,
            disk_mode=mode,
            facts=replace(host.facts(), gvisor=not self.runtime.hands_over),
            hands_over=self.runtime.hands_over,
            space=self._space,
            identities=self._identities.tried(base.rootfs, mode, self._records.root, joins=self.runtime.hands_over),
            agents=self._agents,
            filled=self._filled,
        )

    def _check_blank(self, home: OciHome) -> None:
        """Whether one that runs may become a chat's."""
        self._space.require()
        mounted = ext4.mounted(self._assembly.disk(home, None).target)
        if mounted is not None and mounted.errors():
            raise StartFailed("The disk of this blank sandbox is damaged.")

    def _flush(self, home: OciHome) -> None:
        if mounted := ext4.mounted(self._assembly.disk(home, None).target):
            mounted.flush()

    def _probe_disk(self) -> DiskMode:
        """On a full disk nothing can be tried: then as the sandboxes that there are, until there is space."""
        try:
            return disk.probe(self._records.root)
        except NoSpace:
            self._probed = False
            trees = any((home.path / "tree").exists() for home in self._records.homes())
            return DiskMode.QUOTA if trees else DiskMode.IMAGE

    def _see_all(self) -> Sequence[SandboxSeen]:
        look = DiskScan(self._records, self._assembly, self.runtime.name, self._starting)
        return look.all()

    async def _probe_again(self) -> None:
        """There is space again: what could not be tried on a full disk is."""
        if not self._probed:
            self._assembly = replace(self._assembly, disk_mode=await in_thread(disk.probe, self._records.root))
            self._probed = True

    async def _stop_for(self, home: OciHome, reason: str) -> None:
        """Not while somebody else is at it: then it is looked at again later."""
        async with self._only_one_at(home, 0):
            await self._stop(home)
            await in_thread(home.save_failure, reason)


def _plain(error: BaseException) -> str:
    """An error as words, without a path of the host."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return _HOST_PATH.sub("…", str(error)) or type(error).__name__
