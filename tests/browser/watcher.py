"""A person at the live view, as docs/live-browser.md describes the channel."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect


@dataclass
class Picture:
    seq: int
    width: float
    height: float
    tab: str
    jpeg: bytes = field(repr=False)

    @property
    def pixels(self) -> tuple[int, int]:
        """The size that the JPEG itself has."""
        at = 2
        while self.jpeg[at + 1] not in (0xC0, 0xC2):
            at += 2 + int.from_bytes(self.jpeg[at + 2 : at + 4], "big")
        height, width = struct.unpack(">HH", self.jpeg[at + 5 : at + 9])
        return width, height


@dataclass
class Watcher:
    """Keeps what came; acknowledges each frame at once unless told not to."""

    socket: ClientConnection
    acknowledges: bool = True
    heard: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    frames: int = 0

    @classmethod
    async def at(cls, address: str, *, headers: dict[str, str] | None = None, **options: Any) -> Self:
        socket = await connect(
            address, compression=None, max_size=None, open_timeout=60, additional_headers=headers or {}
        )
        return cls(socket, **options)

    async def say(self, type: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def hear(self) -> dict[str, Any] | Picture:
        """The next thing."""
        message = await self.socket.recv()
        if isinstance(message, str):
            told: dict[str, Any] = json.loads(message)
            self.heard.append(told)
            return told
        (length,) = struct.unpack(">I", message[:4])
        header = json.loads(message[4 : 4 + length])
        picture = Picture(header["seq"], header["w"], header["h"], header["tab"], message[4 + length :])
        self.frames += 1
        self.pictures = [*self.pictures[-4:], picture]
        if self.acknowledges:
            await self.say("ack", seq=picture.seq)
        return picture

    async def until(self, type: str, limit: float = 90.0, **fields: Any) -> dict[str, Any]:
        """The next message of this type with these fields."""
        return await self.that(
            lambda told: told["type"] == type and all(told.get(k) == v for k, v in fields.items()), limit
        )

    async def that(self, wanted: Callable[[dict[str, Any]], bool], limit: float = 90.0) -> dict[str, Any]:
        try:
            async with asyncio.timeout(limit):
                while True:
                    told = await self.hear()
                    if isinstance(told, dict) and wanted(told):
                        return told
        except TimeoutError:
            raise AssertionError(f"not heard within {limit} s; heard was {self.heard[-12:]}") from None

    async def tabs(self, wanted: Callable[[dict[str, Any]], bool] = lambda told: True, **fields: Any) -> None:
        """Wait until the tabs are so. What was told last holds until something else is."""

        def are_so(told: dict[str, Any]) -> bool:
            return told["type"] == "tabs" and all(told.get(k) == v for k, v in fields.items()) and wanted(told)

        latest = self.latest("tabs")
        if latest is None or not are_so(latest):
            await self.that(are_so)

    def latest(self, type: str) -> dict[str, Any] | None:
        return next((told for told in reversed(self.heard) if told["type"] == type), None)

    async def picture(self, limit: float = 90.0) -> Picture:
        async with asyncio.timeout(limit):
            while True:
                told = await self.hear()
                if isinstance(told, Picture):
                    return told

    async def drive(self, name: str = "Ann") -> None:
        await self.say("control", action="take", name=name)
        await self.until("control", you=True)

    async def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        await self.say("nav", action="go", url=url)
        await self.that(lambda told: told["type"] == "tabs" and not told["loading"] and _shows(told, url))

    async def click(self, x: float, y: float) -> None:
        await self.say("mouse", event="move", x=x, y=y)
        await self.say("mouse", event="down", x=x, y=y, button="left", buttons=1, clicks=1)
        await self.say("mouse", event="up", x=x, y=y, button="left", buttons=0, clicks=1)

    async def leave(self) -> None:
        try:
            await self.socket.close()
        finally:
            self.socket.transport.abort()  # a time limit may end the closing, too


def _shows(told: dict[str, Any], url: str) -> bool:
    return any(tab["id"] == told["active"] and tab["url"] == url for tab in told["tabs"])
