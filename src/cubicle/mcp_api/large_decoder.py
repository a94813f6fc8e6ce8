"""Decodes large JSON so that others keep most of the event loop's time."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from pydantic_core import from_json

_REST = 4
"""How many times as long as a decoding took nobody else decodes: a call of another tenant meets one at most."""


class LargeDecoder:
    """One message at a time: 64 MB take some 80 ms, in which nothing else runs."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._free_at = 0.0

    async def decode(self, body: bytes | bytearray) -> Any:
        """The value. Raises ValueError."""
        async with self._lock:
            await asyncio.sleep(max(0.0, self._free_at - monotonic()))
            began = monotonic()
            try:
                return from_json(body, cache_strings="keys")
            finally:
                self._free_at = monotonic() + _REST * (monotonic() - began)
