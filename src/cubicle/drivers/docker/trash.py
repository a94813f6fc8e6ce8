"""The trash: stopped containers under another name, so that the engine has their files and their owner can have a new
one. The name is the truth, and is changed at once; a note in DATA_DIR/docker/trash says whose it was and why."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import Any

from aiodocker import Docker
from aiodocker.exceptions import DockerError

from cubicle.drivers.common.completion import in_thread
from cubicle.drivers.docker import config, engine
from cubicle.drivers.docker.engine_errors import ENGINE_ERRORS, plain
from cubicle.drivers.docker.records import DockerRecords
from cubicle.machine.errors import OwnerHasSandbox, SandboxError
from cubicle.sandbox.trash import Discarded, TrashNote

_MEASURE_SECONDS = 10.0


async def discard(
    client: Docker, records: DockerRecords, instance: str, entry: dict[str, Any], note: TrashNote
) -> None:
    """Put a stopped container in the trash."""
    name, owner = entry["Labels"][config.NAME], config.owner_of(instance, entry["Names"][0])
    measured = replace(note, size=await _size(client, instance, name, entry["Id"]))
    try:
        await in_thread(records.keep_note, name, measured)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # the container's own name says enough to restore it
            raise
    try:
        await client.containers.container(entry["Id"]).rename(config.trash_name(instance, name, owner))
    except ENGINE_ERRORS as error:
        raise SandboxError(f"The sandbox could not be moved to the trash: {plain(error)}.") from error


async def restore(client: Docker, records: DockerRecords, instance: str, entry: dict[str, Any], owner: str) -> None:
    """Give a container in the trash to an owner."""
    name = entry["Labels"][config.NAME]
    try:
        await client.containers.container(entry["Id"]).rename(config.container_name(instance, name, owner))
    except ENGINE_ERRORS as error:
        if isinstance(error, DockerError) and error.status == 409:
            raise OwnerHasSandbox("") from error
        raise SandboxError(f"The sandbox could not be restored: {plain(error)}.") from error
    await in_thread(records.forget_note, name)


def see(records: DockerRecords, instance: str, entry: dict[str, Any]) -> Discarded:
    name = entry["Labels"][config.NAME]
    owner = config.owner_of(instance, entry["Names"][0])
    return Discarded(name, owner, records.note(name), entry["Labels"].get(config.IMAGE, ""))


async def _size(client: Docker, instance: str, name: str, container_id: str) -> int | None:
    """Bytes of its layer and its volumes, if the engine tells in time."""
    try:
        async with asyncio.timeout(_MEASURE_SECONDS):
            listed = await client.containers.list(all=1, size=1, filters={"id": [container_id]})
            volumes = await engine.volume_bytes(client, instance)
            return int(listed[0]._container.get("SizeRw", 0)) + volumes.get(name, 0)
    except (*ENGINE_ERRORS, SandboxError, IndexError):
        return None
