"""The time limit inside each asynchronous test."""

from __future__ import annotations

import asyncio

import pytest


@pytest.mark.timeout(21)
@pytest.mark.xfail(raises=TimeoutError, strict=True)
async def test_what_hangs_is_cancelled_where_it_waits() -> None:
    await asyncio.Event().wait()
