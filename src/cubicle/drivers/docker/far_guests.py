"""Guests that no socket of this machine leads to: reached over TCP where a network is set, else by an `exec` for each
connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiodocker import Docker
from aiodocker.containers import DockerContainer

from cubicle.drivers.common.completion import in_thread
from cubicle.drivers.common.guest_tcp import GuestKeys
from cubicle.drivers.docker import config
from cubicle.drivers.docker.config import EngineFacts, TcpGuest
from cubicle.drivers.docker.engine import EngineAddress
from cubicle.drivers.docker.engine_errors import ENGINE_ERRORS
from cubicle.drivers.docker.streams import Streams
from cubicle.drivers.docker.tcp_guests import TcpGuests

_TRY_SECONDS = 5.0
_PAUSE_SECONDS = 0.05


class FarGuests:
    """All of one engine."""

    def __init__(self) -> None:
        self._streams = Streams()
        self.tcp: TcpGuests | None = None
        """Where that is wanted."""

    async def use_network(
        self, network: str, client: Docker, address: EngineAddress, facts: EngineFacts, key_file: Path, instance: str
    ) -> None:
        """Reach those that are made from now on over this network of the engine. Raises Unusable."""
        keys = await in_thread(GuestKeys.load, key_file)
        self.tcp = TcpGuests(network, address, keys, instance)
        await self.tcp.check(client, facts)

    async def close(self) -> None:
        await self._streams.close()

    def terms(self) -> TcpGuest | None:
        """What a new container is told."""
        return self.tcp.terms() if self.tcp else None

    async def programs(self, machine: str) -> Mapping[str, bytes]:
        """What such a container needs besides the guest."""
        return await in_thread(config.tcp_programs, machine) if self.tcp else {}

    def targets(self, address: EngineAddress) -> tuple[tuple[str, str, int], ...]:
        """What the network leads to and no sandbox may reach."""
        place = urlsplit(address.url)
        return (("the engine", place.hostname, place.port),) if self.tcp and place.hostname and place.port else ()

    async def connect(self, name: str, container: DockerContainer, seconds: float) -> socket.socket:
        """A connected non-blocking socket. Raises OSError."""
        if self.tcp is not None:
            shown = await _shown(container)
            if self.tcp.has(shown):
                return await self.tcp.connect(name, shown, seconds)
        return await self._streams.open(container, seconds)

    async def wait_for(self, name: str, container: DockerContainer, seconds: float) -> None:
        """Until its guest answers. Raises OSError if it does not in time, or if its container ends."""
        ends = time.monotonic() + seconds
        while self.tcp is not None and self.tcp.has(shown := await _shown(container)):
            if not shown["State"]["Running"] or time.monotonic() > ends:
                raise ConnectionRefusedError("the guest did not come up")
            with contextlib.suppress(OSError):
                (await self.tcp.connect(name, shown, _TRY_SECONDS)).close()
                return
            await asyncio.sleep(_PAUSE_SECONDS)
        (await self._streams.open(container, seconds)).close()

    async def address(self, container: DockerContainer) -> tuple[str, int] | None:
        """Where on the engine's network a guest listens."""
        return self.tcp.inner_address(await _shown(container)) if self.tcp else None


async def _shown(container: DockerContainer) -> dict[str, Any]:
    try:
        shown: dict[str, Any] = await container.show()
    except ENGINE_ERRORS as error:
        raise ConnectionRefusedError("the engine does not tell about the sandbox") from error
    return shown
