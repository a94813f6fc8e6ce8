"""The relay's limits, with ends that hang, flood or fall silent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle.core.chat import Chat
from cubicle.http_api.websocket_proxy import ProxyLimits
from cubicle.machine.errors import MachineError
from cubicle.machine.websocket import WebSocketClient
from tests.browser.ground import Service
from tests.browser.typist import Typist

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.usefixtures("ttyd")]


def strictly(limits: ProxyLimits, **options: Any) -> pytest.MarkDecorator:
    """The service of a test: what it limits, and how uvicorn treats its clients."""
    return pytest.mark.parametrize("strict", [(limits, options)], indirect=True, ids=["strict"])


async def start(service: Service) -> None:
    async with (
        service.machine("c"),
        httpx.AsyncClient(base_url=service.base, timeout=60, trust_env=False, verify=False) as http,
    ):
        assert (await http.post("/terminal/c/start-ttyd")).status_code == 200


async def ended(typist: Typist, limit: float = 60.0) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as closed:
        await typist.until("never", limit)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


async def no_leases(service: Service, limit: float = 60.0) -> None:
    async with asyncio.timeout(limit):
        while (seen := service.fleet.state(Chat("c"))) and seen.leases:
            await asyncio.sleep(0.05)


@strictly(ProxyLimits(most=64 * 1024))
async def test_a_message_over_the_limit_is_refused(strict: Service) -> None:
    await start(strict)
    typist = await Typist.at(f"{strict.ws}/terminal/c/ws")
    await typist.type("x" * 70_000)
    assert (await ended(typist))[0] == 1009


@strictly(ProxyLimits(silence=4.0))  # a busy machine may keep it from answering for a while, too
async def test_a_terminal_server_that_hangs_is_found(strict: Service) -> None:
    await start(strict)
    typist = await Typist.at(f"{strict.ws}/terminal/c/ws")
    await typist.type("echo $((3*3))-up\r")
    await typist.until("9-up")
    async with strict.machine("c") as machine:
        await machine.output("pkill -STOP -x ttyd || pkill -STOP -f /ttyd", timeout=60)
        assert await ended(typist) == (1011, "The program in the sandbox does not answer.")
        await machine.output("pkill -KILL -x ttyd || pkill -KILL -f /ttyd", timeout=60)


@strictly(ProxyLimits(idle=1.0, silence=4.0))  # the first look finds it idle, before it can be found silent
async def test_a_connection_that_nobody_uses_is_closed(strict: Service) -> None:
    await start(strict)
    typist = await Typist.at(f"{strict.ws}/terminal/c/ws")
    assert await ended(typist) == (1001, "Nobody used this connection for a long time.")


@strictly(ProxyLimits(), ws_ping_interval=0.5, ws_ping_timeout=0.5)
async def test_a_client_that_vanished_is_found(strict: Service) -> None:
    """Its kernel still holds the connection, but nobody answers pings."""
    await start(strict)
    port = int(strict.base.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    key = base64.b64encode(os.urandom(16)).decode()
    writer.write(
        f"GET /terminal/c/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: tty\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    seen = strict.fleet.state(Chat("c"))
    assert seen is not None
    assert seen.leases == 1
    await no_leases(strict)
    writer.close()


async def test_a_reader_that_stops_stops_the_writer(service: Service) -> None:
    """Back-pressure goes all the way: what a slow page does not take stays in the sandbox."""
    async with service.machine("c") as machine:
        await machine.output("ttyd --port 7001 --interface 127.0.0.1 yes >/dev/null 2>&1 </dev/null &", timeout=60)
        backend = None
        async with asyncio.timeout(60):
            while backend is None:
                with contextlib.suppress(MachineError):
                    backend = await WebSocketClient.open(machine, 7001, "/ws", most=1024**2, subprotocols=["tty"])
        await backend.send(b'{"AuthToken":"","columns":80,"rows":24}')
        async with asyncio.timeout(60):  # its title and preferences come before the program is there
            while not (await backend.receive()).startswith(b"0"):  # type: ignore[arg-type]
                pass
        before, now = b"", b"?"
        async with asyncio.timeout(100):  # until the buffers on the way are full
            while before != now:
                before = now
                _, now = await machine.output("sleep 1; grep wchar /proc/$(pgrep -x yes)/io", timeout=60)
        assert 0 < int(now.split()[1]) < 32 * 1024**2
        backend.abort()
        await machine.output("pkill -KILL -f 7001", timeout=60)


async def test_a_hundred_connections_come_and_go_and_nothing_is_left(service: Service) -> None:
    await start(service)
    for _ in range(5):
        sockets = await asyncio.gather(
            *(
                connect(f"{service.ws}/terminal/c/ws", subprotocols=["tty"], compression=None, open_timeout=60)  # type: ignore[list-item]
                for _ in range(20)
            )  # type: ignore[list-item]
        )
        await asyncio.gather(*(socket.close() for socket in sockets))
    await no_leases(service)
