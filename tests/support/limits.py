"""A time limit inside each asynchronous test, a little shorter than the one around it.

What hangs is cancelled where it waits, and says so. The limit around it can only break off the event loop: the test stays
in it, and every later test that shares the loop would wait behind it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest

_BEFORE = 20.0
"""Seconds that taking down may need."""


def limit(item: pytest.Item) -> None:
    """Give the test of this item its limit."""
    if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return
    if hasattr(item.obj, "hypothesis"):
        return  # each of its examples is a call of its own
    seconds = around(item) - _BEFORE
    if seconds > 0:
        item.obj = _limited(item.obj, seconds)


def around(item: pytest.Item) -> float:
    """Seconds that pytest gives the test; 0: as many as it wants."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs.get("timeout", 0))
    if not item.config.pluginmanager.hasplugin("timeout"):
        return 0.0
    given = item.config.getoption("timeout", None)
    return float(given if given is not None else item.config.getini("timeout") or 0)


def _limited(test: Any, seconds: float) -> Any:
    @functools.wraps(test)
    async def limited(*arguments: Any, **named: Any) -> Any:
        async with asyncio.timeout(seconds):
            return await test(*arguments, **named)

    return limited
