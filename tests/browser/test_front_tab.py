"""Which tab is in front, by the lists that Chromium 156 gave: the head is what was activated last, or opened, or what
somebody ceased to emulate focus in."""

from __future__ import annotations

from typing import cast

from cubicle.browser.cdp import CdpConnection
from cubicle.browser.front_tab import FrontTab
from cubicle.browser.tab import Tab
from cubicle.machine.machine import Machine


class Tabs:
    """One tab in front, and those that open later."""

    def __init__(self) -> None:
        self.all: dict[str, Tab] = {}
        self.front = FrontTab(cast(Machine, None), self.all)
        self.attach("a", drawn=True)
        assert self.sees("a") == "a"

    def attach(self, id: str, *, drawn: bool | None) -> None:
        tab = self.all[id] = Tab(cast(CdpConnection, None), id)
        tab.session = f"session of {id}"
        if drawn is not None:
            tab.note_drawn(drawn)

    def opens(self, id: str, *, drawn: bool | None) -> None:
        self.attach(id, drawn=drawn)
        self.front.opened(id)

    def closes(self, id: str) -> None:
        del self.all[id]
        self.front.closed(id)

    def sees(self, order: str) -> str | None:
        found = self.front.see(list(order))
        return found.id if found else None


def test_a_tab_that_opens_in_the_background_does_not_bring_up_the_one_in_front() -> None:
    tabs = Tabs()
    tabs.opens("b", drawn=False)
    assert tabs.sees("ba") is None
    assert tabs.sees("ab") is None, "the live view shows b, and ceased to emulate focus in a"
    tabs.opens("c", drawn=False)
    assert tabs.sees("cab") is None
    assert tabs.sees("acb") is None


def test_it_is_in_front_when_it_is_brought_there_later() -> None:
    tabs = Tabs()
    tabs.opens("b", drawn=False)
    assert [tabs.sees("ba"), tabs.sees("ab"), tabs.sees("ba"), tabs.sees("ab")] == [None, None, "b", "a"]


def test_a_tab_that_opens_in_the_foreground_is_in_front() -> None:
    tabs = Tabs()
    tabs.opens("b", drawn=True)
    assert [tabs.sees("ba"), tabs.sees("ab")] == ["b", "a"]


def test_what_is_not_known_yet_counts_when_it_is() -> None:
    tabs = Tabs()
    tabs.opens("b", drawn=None)
    assert tabs.sees("ba") is None
    tabs.all["b"].note_drawn(True)
    tabs.all["b"].note_drawn(False)  # somebody went back at once
    assert [tabs.sees("ba"), tabs.sees("ab")] == ["b", "a"]


def test_the_last_tab_is_in_front_however_it_opened() -> None:
    tabs = Tabs()
    tabs.opens("b", drawn=False)
    tabs.closes("a")
    assert tabs.sees("b") is None, "nobody used it by closing the other"
    tabs.opens("c", drawn=True)
    assert [tabs.sees("cb"), tabs.sees("bc")] == ["c", "b"]


def test_tabs_that_close_before_they_are_attached_to_leave_nothing() -> None:
    tabs = Tabs()
    for number in range(100):
        tabs.front.opened(f"gone {number}")
    tabs.sees("a")
    assert not vars(tabs.front)["_new"]
