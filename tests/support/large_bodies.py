"""Large bodies over plain sockets: what tests of the kernel's moves send, read and see."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from cubicle.http_api import request_bodies
from cubicle.machine.socket_splice import SocketSplice

MB = 1024**2
BODY = os.urandom(MB) * 12 + b"the end"


async def head_of(reader: asyncio.StreamReader) -> tuple[bytes, dict[bytes, bytes]]:
    """The first line of a request or an answer, and its headers."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    return first, {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}


def answer(status: bytes, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def seen_splices(monkeypatch: pytest.MonkeyPatch) -> list[SocketSplice]:
    """What goes on by the kernel from now on."""
    seen: list[SocketSplice] = []

    class Seen(SocketSplice):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            seen.append(self)

    monkeypatch.setattr(request_bodies, "SocketSplice", Seen)
    return seen
