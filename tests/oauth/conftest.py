from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.oauth.issuer_server import IssuerServer, issuer_server


@pytest.fixture
async def issuer() -> AsyncIterator[IssuerServer]:
    async with issuer_server() as server:
        yield server


@pytest.fixture
async def web() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        yield client
