"""The tasks of the driver that look after the disks of the sandboxes that are up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cubicle.drivers.common.completion import in_thread
from cubicle.drivers.oci.disk import DiskMode
from cubicle.drivers.oci.look import is_up, over_limit
from cubicle.drivers.oci.records import OciHome, OciRecords
from cubicle.drivers.oci.space import SpaceWatch
from cubicle.machine.errors import SandboxError

log = logging.getLogger(__name__)

_WATCH_SECONDS = 15.0
_DAMAGE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DiskWatches:
    records: OciRecords
    watch: SpaceWatch
    starting: Set[str]
    mode: Callable[[], DiskMode]
    """How disks are limited; it can change while the driver is open."""
    stop: Callable[[OciHome, str], Awaitable[None]]
    """Stop one, and note why. Raises SandboxError and OSError."""
    probe: Callable[[], Awaitable[None]]
    """Find out how disks are limited, where that is not known yet."""

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {"free space": self._watch_space, "disk watchdog": self._watch_disks}

    async def _watch_space(self) -> None:
        """Keep what runs from filling the host; start anew, once there is space, what came to harm all the same."""
        loop, since = asyncio.get_running_loop(), 0.0
        thread = ThreadPoolExecutor(1, "free-space")  # of its own: busy ones must not keep it waiting
        try:
            while True:
                try:
                    await loop.run_in_executor(thread, self.watch.look)
                    if time.monotonic() - since > _DAMAGE_SECONDS and self.watch.space.short_since is None:
                        since = time.monotonic()
                        await self._stop_damaged(await loop.run_in_executor(thread, self.watch.damaged))
                except (SandboxError, OSError) as error:
                    log.warning("the free space could not be watched: %s", error)
                    await asyncio.sleep(_WATCH_SECONDS)
                await asyncio.sleep(self.watch.interval)
        finally:
            thread.shutdown(wait=False)

    async def _stop_damaged(self, names: Sequence[str]) -> None:
        """Stop what has a damaged disk: its next start repairs it. One that cannot be stopped holds up no other."""
        await self.probe()
        for home in map(self.records.home, names):
            try:
                if home.name in self.starting or not await in_thread(is_up, home):
                    continue
                await self.stop(home, "its disk was damaged; the next start repairs it")
                log.error("sandbox %s was stopped: its disk is damaged; its next start repairs it", home.name)
            except (SandboxError, OSError) as error:
                log.warning("sandbox %s, whose disk is damaged, could not be stopped: %s", home.name, error)

    async def _watch_disks(self) -> None:
        """Stop what is over its limit, where the file system cannot refuse the write itself."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self.mode() is not DiskMode.WATCHDOG:
                continue  # it can still become that: on a full disk it is not known yet
            try:
                homes = await in_thread(lambda: list(self.records.homes()))
            except OSError as error:  # too many files are open, say
                log.warning("the disks of the sandboxes could not be watched: %s", error.strerror)
                continue
            for home in homes:
                try:
                    if limit := await in_thread(over_limit, home):
                        await self.stop(home, f"it used more than its {limit // 1024**2} MiB of disk")
                except (SandboxError, OSError) as error:
                    log.warning("the disk of sandbox %s could not be watched: %s", home.name, error)
