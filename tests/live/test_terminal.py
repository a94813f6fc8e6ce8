"""The live terminal: real ttyd and tmux in a sandbox, reached through the service."""

from __future__ import annotations

import httpx
import pytest

from tests.live.ground import Service
from tests.live.typist import Typist

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ttyd")]


async def test_a_person_types_and_sees_the_output(service: Service, http: httpx.AsyncClient) -> None:
    async with service.machine("one"):
        status = await http.get("/terminal/one/status")
        assert status.json() == {"running": False, "port": 7681}
        assert (await http.post("/terminal/one/start-ttyd")).json() == {"running": True, "started": True}
        assert (await http.post("/terminal/one/start-ttyd")).json() == {"running": True, "started": False}
        assert (await http.get("/terminal/one/status")).json() == {"running": True, "port": 7681}
        typist = await Typist.at(f"{service.ws}/terminal/one/ws")
        await typist.type("echo $((6*7))-answer; id -un; pwd\r")
        await typist.until("42-answer")
        await typist.leave()
