"""The view of a browser, where no browser is needed."""

from typing import Any, cast

from cubicle.browser.live_view import LiveView


async def test_a_view_that_is_over_begins_nothing_any_more():
    screen = LiveView(cast(Any, None))
    began = []

    async def work() -> None:
        began.append(True)

    async with screen._group:
        screen.start(work())
    assert began == [True]
    screen.start(work())  # as an event of the browser that comes late does
    assert began == [True]
