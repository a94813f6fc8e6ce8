"""Guests of an engine on another machine, reached over TCP: each sandbox is on a network of the engine, closed by rules
that its first program sets, and the guest's port is published on the engine's machine.

Whoever connects has to sign the guest's challenge (guest/handshake.py). Commands reach nothing of that network.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from aiodocker import Docker
from aiodocker.exceptions import DockerError

from cubicle.drivers.common import guest_tcp
from cubicle.drivers.common.guest_tcp import GuestAddress, GuestKeys
from cubicle.drivers.docker.config import GUEST_PORT, EngineFacts, TcpGuest, identity
from cubicle.drivers.docker.engine import EngineAddress
from cubicle.machine.errors import Unusable

_EPOCH = 1
"""Of two processes over one DATA_DIR, the one before has ended."""
_PORT = f"{GUEST_PORT}/tcp"


class TcpGuests:
    """How the guests of one engine are reached."""

    def __init__(self, network: str, address: EngineAddress, keys: GuestKeys, instance: str) -> None:
        self._network = network
        self._keys = keys
        self._instance = instance
        self.host = "127.0.0.1" if address.local else urlsplit(address.url).hostname or "127.0.0.1"

    async def check(self, client: Docker, facts: EngineFacts) -> None:
        """Raises Unusable where no sandbox could be closed, or none could be reached."""
        if facts.gvisor:
            raise Unusable("DOCKER_NETWORK: gVisor has no nftables, which close a sandbox's network. Leave it empty.")
        if facts.podman:
            raise Unusable("DOCKER_NETWORK: this works with Docker engines, not with Podman. Leave it empty.")
        if self._network in ("host", "none") or self._network.startswith("container:"):
            raise Unusable(f"DOCKER_NETWORK={self._network} is no network of containers: use bridge, or one you made.")
        try:
            await client._query_json(f"networks/{self._network}")
        except DockerError as error:
            raise Unusable(
                f"DOCKER_NETWORK={self._network}: the engine has no such network: {error.message}."
            ) from None

    def terms(self) -> TcpGuest:
        """What a new container is told."""
        return TcpGuest(self._network, tuple(self._keys.moduli))

    def has(self, shown: Mapping[str, Any]) -> bool:
        """Whether this container's guest listens on TCP: one that was made under other settings may not."""
        return _PORT in (shown["HostConfig"].get("PortBindings") or {})

    def published(self, shown: Mapping[str, Any]) -> int:
        """The port of the engine's machine that leads to its guest. Raises OSError."""
        for each in (shown["NetworkSettings"].get("Ports") or {}).get(_PORT) or []:
            return int(each["HostPort"])
        raise ConnectionRefusedError("the guest's port is not published")

    def inner_address(self, shown: Mapping[str, Any]) -> tuple[str, int] | None:
        """Where its guest is on the engine's network."""
        for each in (shown["NetworkSettings"].get("Networks") or {}).values():
            if each.get("IPAddress"):
                return str(each["IPAddress"]), GUEST_PORT
        return None

    async def connect(self, name: str, shown: Mapping[str, Any], seconds: float) -> socket.socket:
        """A connected non-blocking socket, behind the handshake. Raises OSError."""
        where = GuestAddress(self.host, self.published(shown), identity(self._instance, name))
        return await guest_tcp.connect(where, _EPOCH, self._keys, seconds)
