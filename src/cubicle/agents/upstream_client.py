"""The HTTP client by which the gateway calls APIs and MCP servers. Its import takes a tenth of a second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from cubicle.agents.upstreams import UpstreamFailed

_TIMEOUT = httpx.Timeout(600, connect=15, pool=60)
# Calls of one sandbox are bounded by the gateway; a bound of all together would let a few sandboxes stop the others.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256)


class UpstreamClient:
    """Redirects are not followed: where a credential goes is fixed by the settings."""

    def __init__(self) -> None:
        self._web = httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False, limits=_LIMITS)

    async def close(self) -> None:
        await self._web.aclose()

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, headers: list[tuple[str, str]], body: AsyncIterator[bytes]
    ) -> AsyncIterator[httpx.Response]:
        """The answer, while it comes. Raises UpstreamFailed, also when it breaks off."""
        try:
            async with self._web.stream(method, url, headers=headers, content=body) as answer:
                yield answer
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UpstreamFailed(type(error).__name__) from error
