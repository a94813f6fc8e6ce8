"""Who came by a view link sees the terminal and the browser, and nothing that they send gets there."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import websockets
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle.core.sandbox_ports import TERMINAL
from tests.browser import ground
from tests.browser.ground import VIEWER
from tests.browser.hostile_browser import nonsense_in
from tests.browser.watcher import Watcher

# In place of ttyd: sends back all that it is sent.
ECHO = f"""
import asyncio
from websockets.asyncio.server import serve
async def heard(peer):
    async for message in peer:
        await peer.send(message)
async def main():
    async with serve(heard, "127.0.0.1", {TERMINAL}, subprotocols=["tty"]) as server:
        await server.serve_forever()
asyncio.run(main())
"""


def library() -> bytes:
    """The library as a zip of plain Python."""
    content, root = io.BytesIO(), Path(websockets.__file__).parent
    with zipfile.ZipFile(content, "w") as zipped:
        for path in root.rglob("*.py"):
            zipped.write(path, f"websockets/{path.relative_to(root)}")
    return content.getvalue()


FIRST, LAST = b'{"AuthToken": "", "columns": 80, "rows": 24}', b"3"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ground.Service]:
    async with ground.serving(ground.memory_driver(tmp_path), tmp_path) as running:
        yield running


@pytest.mark.parametrize("looks", [True, False])
async def test_nothing_that_a_viewer_types_gets_to_the_terminal(service: ground.Service, looks: bool) -> None:
    typed: list[bytes | list[bytes]] = [
        b"0rm -rf /\r",
        [b"0rm ", b"-rf ", b"/\r"],
        [b"", b"0rm -rf /\r"],
        [b"", b"2", b"0rm"],
        b"1" + FIRST,
        b"",
        b" 0x",
        b"\x00",
    ]
    async with service.machine("c") as machine:
        await machine.write("/home/assistant/ws.zip", await asyncio.to_thread(library))
        await machine.write("/home/assistant/echo.py", ECHO.encode())
        up = f"until : </dev/tcp/127.0.0.1/{TERMINAL}; do sleep 0.1; done"
        start = f"(PYTHONPATH=ws.zip setsid python3 echo.py >/dev/null 2>&1 </dev/null &); ({up}) 2>/dev/null"
        ended, said = await machine.output(start, timeout=60)
        assert ended.status == 0, said
        place = f"{service.ws}/terminal/c/ws"
        headers = VIEWER if looks else {}
        async with (
            asyncio.timeout(60),
            connect(place, subprotocols=["tty"], additional_headers=headers, proxy=None) as socket,  # type: ignore[list-item]
        ):
            for message in (FIRST, *typed, b"2", LAST):
                await socket.send(message)
            back = []
            while not back or back[-1] != LAST:
                back.append(await socket.recv())
    whole = [message if isinstance(message, bytes) else b"".join(message) for message in typed]
    assert back == [FIRST, *([] if looks else whole), b"2", LAST]


async def refusal(service: ground.Service, sent: dict[str, str]) -> dict[str, object]:
    """What the live view answers to this. A browser that talks nonsense may end the view at any time."""
    async with asyncio.timeout(120):
        while True:
            watcher = Watcher(await connect(f"{service.ws}/browser/c/live", additional_headers=VIEWER, proxy=None))
            try:
                await watcher.say(**sent)
                return await watcher.until("refused", message=sent["type"])
            except ConnectionClosed as closed:
                if closed.rcvd is None or closed.rcvd.code != 4503:
                    raise
            finally:
                await watcher.leave()


async def test_nothing_that_a_viewer_sends_gets_to_the_browser(service: ground.Service) -> None:
    async with service.machine("c") as machine, nonsense_in(machine, 1):
        for sent in (
            {"type": "control", "action": "take", "name": "Eve"},
            {"type": "text", "text": "x"},
            {"type": "paste", "text": "x"},
        ):
            assert (await refusal(service, sent))["reason"] == "view-only"
        async with httpx.AsyncClient(
            base_url=service.base, timeout=60, trust_env=False, verify=False, headers=VIEWER
        ) as http:
            for method, path in (
                ("PUT", "/browser/c/json/new?about:blank"),
                ("GET", "/browser/c/json/list"),
                ("POST", "/terminal/c/sessions/x/resume"),
                ("POST", "/terminal/c/processes/4/kill"),
            ):
                assert (await http.request(method, path)).status_code == 403
            assert (await http.get("/browser/c/status")).status_code == 200
        for path in ("", "/devtools/page/A", "/devtools/browser/A"):
            async with connect(f"{service.ws}/browser/c{path}", additional_headers=VIEWER, proxy=None) as socket:
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4403
