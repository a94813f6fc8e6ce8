"""Which ports of a sandbox programs listen on, and which are nobody's to open.

PortReserved    the port is a part of the sandbox itself
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from cubicle.core.sandbox_ports import RESERVED
from cubicle.core.text import one_line
from cubicle.guest.operations import ListeningPort
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine

MAX_PORTS = 64
"""Of one chat that people are shown."""
_FRESH_SECONDS = 5.0
_MAX_NAME = 40


class PortReserved(Exception):
    """Nobody opens this port: it is the terminal's, the browser's, or the guest's own."""


@dataclass(frozen=True, slots=True)
class OpenPort:
    """A port that a program of the sandbox listens on."""

    port: int
    process: str
    address: str


def shown(ports: Iterable[ListeningPort]) -> list[OpenPort]:
    """Those that people may open, in their order. What the guest says is data: names are one short line."""
    open_ports = {
        seen.port: OpenPort(seen.port, one_line(seen.process)[:_MAX_NAME], one_line(seen.address)[:_MAX_NAME])
        for seen in ports
        if not seen.own and seen.port not in RESERVED
    }
    return [open_ports[port] for port in sorted(open_ports)][:MAX_PORTS]


class OpenedPorts:
    """Notices ports that were opened since somebody was told last."""

    def __init__(self) -> None:
        self._told: WeakKeyDictionary[Machine, tuple[OpenPort, ...]] = WeakKeyDictionary()
        self._marks: WeakKeyDictionary[Machine, int | None] = WeakKeyDictionary()

    async def since_last(self, machine: Machine, mark: int | None = None) -> Sequence[OpenPort]:
        """`mark`: what the guest said with the end of a command. With the same as before, nothing was opened."""
        if mark is not None and machine in self._told and self._marks.get(machine) == mark:
            return ()
        try:
            now = shown(await machine.ports())
        except SandboxError:
            return ()
        told = {seen.port for seen in self._told.get(machine, ())}
        self._told[machine], self._marks[machine] = tuple(now), mark
        return [seen for seen in now if seen.port not in told]

    def now(self, machine: Machine) -> Sequence[OpenPort] | None:
        """Those that were open at the last look; None if there was none."""
        return self._told.get(machine)


class PortRules:
    """Refuses the sandbox's own ports. What the guest listens on is asked for every few seconds at most."""

    def __init__(self) -> None:
        self._own: WeakKeyDictionary[Machine, tuple[float, frozenset[int]]] = WeakKeyDictionary()

    async def require_open(self, machine: Machine, port: int) -> None:
        """Raises PortReserved."""
        asked, own = self._own.get(machine, (float("-inf"), frozenset[int]()))
        if time.monotonic() - asked > _FRESH_SECONDS:
            try:
                own = frozenset(seen.port for seen in await machine.ports() if seen.own)
            except MachineError:
                raise PortReserved("This sandbox does not tell which ports are its own. None is opened.") from None
            self._own[machine] = (time.monotonic(), own)
        if port in RESERVED or port in own:
            raise PortReserved(f"Port {port} is a part of the sandbox itself and is not opened.")
