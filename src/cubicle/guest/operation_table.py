"""What the guest answers to, and what it loads only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from .connection import GuestChannel

TYPE_CHECKING = False
if TYPE_CHECKING:
    Channels = dict[str, type[GuestChannel]]


class OperationTable:
    """The class of channel of each operation. Those that no command needs are loaded when the host asks for one: a
    sandbox in which only commands run stays small, and starts sooner."""

    def __init__(self, served: Channels, load: Callable[[], Channels]) -> None:
        self._served = served
        self._load: Callable[[], Channels] | None = load

    def find(self, operation: str) -> type[GuestChannel] | None:
        if operation not in self._served and self._load is not None:
            self._served = {**self._load(), **self._served}
            self._load = None
        return self._served.get(operation)

    def serve_only(self, operation: str, kind: type[GuestChannel]) -> None:
        """Answer to nothing else from now on."""
        self._served, self._load = {operation: kind}, None
