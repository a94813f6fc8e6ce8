"""After a crash: removes what nobody was ever given. The volumes of a chat stay, whatever else of it is gone."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from cubicle.drivers.common.completion import in_thread
from cubicle.drivers.docker import config
from cubicle.drivers.docker.records import DockerRecords, word

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cleaner:
    """Compares the engine's objects with the driver's own records."""

    records: DockerRecords
    instance: str
    first_id: int
    delete: Callable[[str, str | None], Awaitable[None]]

    async def clean(self, containers: Collection[dict[str, Any]], in_trash: set[str], volumes: set[str]) -> None:
        known = set(in_trash)
        for entry in containers:
            name = word(entry["Labels"][config.NAME])
            if await self._has_run(name, entry):
                known.add(name)
            else:
                await self.delete(name, entry["Id"])
        for name in {*volumes, *await in_thread(self.records.names)} - known:
            home = self.records.home(name)
            if name not in volumes or await in_thread(home.is_blank):
                await self.delete(name, None)
            elif await in_thread(home.owner) is None:
                log.warning("the volumes of %s have no container, and it is not known whose they are", name)

    async def _has_run(self, name: str, entry: dict[str, Any]) -> bool:
        """Whether there may be something in a container; whose it is, is noted beside it."""
        home, owner = self.records.home(name), config.owner_of(self.instance, entry["Names"][0])
        if entry["State"] == "created" and not await in_thread(home.has_run):
            return False
        if owner is not None:
            await in_thread(home.make, self.first_id)
            await in_thread(home.bound, owner)
        return True
