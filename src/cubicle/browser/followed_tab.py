"""Which tab of a chat's browser is followed: the one that was used last. A tab is used by whoever opens it, navigates
it, gives it input or brings it to the front; whether the browser draws it does not matter.

While a person drives, only that person's tab counts, and what is opened from it: the model does not take it away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cubicle.browser.server_messages import UsedMessage, UseKind
from cubicle.browser.tab import Tab

_TELL_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Use:
    """A tab was used, and when by the monotonic clock."""

    tab: str
    how: UseKind
    at: float

    def message(self) -> UsedMessage:
        past = max(0.0, round(time.monotonic() - self.at, 1))
        return {"type": "used", "tab": self.tab, "how": self.how, "seconds": past}


class FollowedTab:
    """`tab` is the one that is followed. The order of use is kept for the moment at which it closes."""

    def __init__(
        self,
        tabs: Mapping[str, Tab],
        driven: Callable[[], Tab | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tabs = tabs
        self._driven = driven
        self._clock = clock
        self._order: dict[str, None] = {}
        self._told: Use | None = None
        self.tab: Tab | None = None
        self.last: Use | None = None

    def used(self, tab: Tab, how: UseKind) -> bool:
        """Take note of a use; whether another tab is followed from now on."""
        if tab.id not in self._tabs or not tab.session:
            return False
        driven = self._driven()
        if driven is not None and tab is not driven and tab.opener != driven.id:
            return False
        self.last = Use(tab.id, how, self._clock())
        return self.choose(tab)

    def news(self) -> Use | None:
        """The last use, if it is to be told: of the same kind in the same tab, once a second."""
        last, told = self.last, self._told
        if last is None or last is told:
            return None
        if told is not None and (last.tab, last.how) == (told.tab, told.how) and last.at - told.at < _TELL_EVERY:
            return None
        self._told = last
        return last

    def choose(self, tab: Tab) -> bool:
        """Follow this one; whether it is another than before."""
        self._order.pop(tab.id, None)
        self._order[tab.id] = None
        changed, self.tab = self.tab is not tab, tab
        return changed

    def lost(self, tab: Tab) -> bool:
        """The tab is gone: follow the one that was used before it; whether that is another."""
        self._order.pop(tab.id, None)
        if self.tab is not tab:
            return False
        attached = (self._tabs[id] for id in reversed(self._order) if id in self._tabs and self._tabs[id].session)
        self.tab = next(attached, None)
        return True
