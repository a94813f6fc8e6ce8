"""What a hostile page tries, and who listens for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import FrameLocator, Page

from tests.http_api.pages.visitor import House

OUTPUTS = "/mnt/user-data/outputs"


class Listener(asyncio.DatagramProtocol):
    """A UDP port of this machine, and how many packets came to it."""

    def __init__(self) -> None:
        self.packets = 0
        self.port = 0
        self._came = asyncio.Event()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.packets += 1
        self._came.set()

    async def hears(self) -> None:
        """Until the next packet."""
        self._came.clear()
        async with asyncio.timeout(60):
            await self._came.wait()


@asynccontextmanager
async def udp_listener() -> AsyncIterator[Listener]:
    loop = asyncio.get_running_loop()
    transport, listener = await loop.create_datagram_endpoint(
        Listener, local_addr=("127.0.0.1", 0), family=socket.AF_INET
    )
    listener.port = transport.get_extra_info("sockname")[1]
    try:
        yield listener
    finally:
        transport.close()


def stun(port: int) -> str:
    """A script that asks a STUN server on that port for its own address: one UDP packet, and more if unanswered."""
    return (
        f"const c = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:{port}'}}]}});"
        "c.createDataChannel('x'); c.createOffer().then((o) => c.setLocalDescription(o));"
    )


def framed(page: Page) -> FrameLocator:
    return page.frame_locator("iframe.file-frame.page")


async def run(page: Page) -> None:
    await page.get_by_role("button", name="Run this page").click()


async def grant(house: House, chat: str, path: str, query: str = "scripts=1") -> str:
    """The address of a page under /raw, as the workspace gets it."""
    answer = await house.client.post(f"/api/chats/{chat}/raw/{path}?{query}")
    answer.raise_for_status()
    return f"/{answer.json()['url']}"
