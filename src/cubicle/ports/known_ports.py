"""What is known of a chat's ports beyond what listens now: those of before its sandbox was stopped, and start commands
that could not be run. In memory, of the chats that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from cubicle.core.chat import Chat
from cubicle.core.text import one_line
from cubicle.ports.listening import OpenPort

_MAX_CHATS = 5_000
_MAX_FAULTS = 8
_MAX_TEXT = 300


@dataclass(slots=True)
class _Known:
    ports: tuple[OpenPort, ...] = ()
    faults: tuple[str, ...] = ()
    is_told: bool = field(default=True)


class KnownPorts:
    """Told by whoever looks at a sandbox that is up; asked while it is not."""

    def __init__(self) -> None:
        self._chats: OrderedDict[Chat, _Known] = OrderedDict()

    def seen(self, chat: Chat, ports: Sequence[OpenPort]) -> None:
        """These are open in the chat's sandbox now."""
        if ports or chat in self._chats:
            self._of(chat).ports = tuple(ports)

    def last(self, chat: Chat) -> tuple[OpenPort, ...]:
        """Those that were open when somebody looked last."""
        known = self._chats.get(chat)
        return known.ports if known is not None else ()

    def started(self, chat: Chat, faults: Sequence[str]) -> None:
        """The start commands of services.json were run; these could not be, and why."""
        if faults or chat in self._chats:
            known = self._of(chat)
            known.faults = tuple(one_line(fault, _MAX_TEXT) for fault in faults[:_MAX_FAULTS])
            known.is_told = not faults

    def faults(self, chat: Chat) -> tuple[str, ...]:
        known = self._chats.get(chat)
        return known.faults if known is not None else ()

    def untold_faults(self, chat: Chat) -> tuple[str, ...]:
        """Those that the model was not told of yet; after this, it was."""
        known = self._chats.get(chat)
        if known is None or known.is_told:
            return ()
        known.is_told = True
        return known.faults

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        self._chats.pop(chat, None)

    def _of(self, chat: Chat) -> _Known:
        known = self._chats.setdefault(chat, _Known())
        self._chats.move_to_end(chat)
        if len(self._chats) > _MAX_CHATS:
            self._chats.popitem(last=False)
        return known
