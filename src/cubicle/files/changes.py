"""Who wants to hear that the uploads of a chat have changed."""

from __future__ import annotations

from collections.abc import Callable

from cubicle.core.chat import Chat

Listener = Callable[[str], None]
"""Told the path of the file that came, was replaced or went. Must not raise, and must not wait."""


class Changes:
    """Passes on each change to the listeners of its chat, and to nobody else."""

    def __init__(self) -> None:
        self._listeners: dict[Chat, dict[object, Listener]] = {}

    def listen(self, chat: Chat, listener: Listener) -> Callable[[], None]:
        """Start to listen; what is returned ends it, and may be called twice."""
        token = object()
        self._listeners.setdefault(chat, {})[token] = listener

        def end() -> None:
            listeners = self._listeners.get(chat, {})
            listeners.pop(token, None)
            if not listeners:
                self._listeners.pop(chat, None)

        return end

    def tell(self, chat: Chat, path: str) -> None:
        for listener in list(self._listeners.get(chat, {}).values()):
            listener(path)

    def count_of(self, tenant: str) -> int:
        return sum(len(listeners) for chat, listeners in self._listeners.items() if chat.tenant == tenant)

    def count(self, chat: Chat | None = None) -> int:
        """How many listen: to one chat, or in all."""
        if chat is not None:
            return len(self._listeners.get(chat, {}))
        return sum(map(len, self._listeners.values()))
