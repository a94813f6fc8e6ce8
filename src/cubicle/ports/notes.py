"""What a model is told of ports: one line for each that was opened, with the link that a person can click."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cubicle.core.chat import Chat
from cubicle.machine.machine import Machine
from cubicle.ports.known_ports import KnownPorts
from cubicle.ports.links import PortLinks
from cubicle.ports.listening import OpenedPorts

_MAX_LINES = 5
_LOOKS = 10
_LOOK_SECONDS = 0.1


class PortNotes:
    """For the answers of bash_tool."""

    def __init__(self, links: PortLinks, known: KnownPorts | None = None) -> None:
        self._links = links
        self._known = known or KnownPorts()
        self._opened = OpenedPorts()

    async def opened(
        self, machine: Machine, chat: Chat, *, awaited: bool = False, mark: int | None = None
    ) -> Sequence[str]:
        """The lines for ports that were opened since the last answer; if `awaited`, one may take a moment to open.
        `mark`: what the end of the command said of ports; without it, or with a new one, the guest is asked for them.

        Before them, what is wrong with services.json, once after each start of the sandbox.
        """
        seen = await self._opened.since_last(machine, mark)
        for _ in range(_LOOKS if awaited else 0):
            if seen:
                break
            await asyncio.sleep(_LOOK_SECONDS)
            seen = await self._opened.since_last(machine)
        lines = [
            f"listening: {one.port} {one.process}".rstrip() + f" → {self._links.link(chat, one.port)}" for one in seen
        ]
        if (now := self._opened.now(machine)) is not None:
            self._known.seen(chat, now)
        more = len(lines) - _MAX_LINES
        faults = [f"services.json: {fault}" for fault in self._known.untold_faults(chat)]
        return [*faults, *lines[:_MAX_LINES], *([f"listening: and {more} more"] if more > 0 else [])]
