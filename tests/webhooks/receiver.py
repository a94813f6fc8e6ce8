"""A receiver of webhooks as a test runs it: a small HTTP server on loopback that behaves as it is told."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standardwebhooks.webhooks import Webhook

SECRET = "whsec_" + base64.b64encode(b"a secret of 32 bytes, of a test!").decode()
OTHER_SECRET = "whsec_" + base64.b64encode(b"the next secret, 32 bytes long!!").decode()

Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Message:
    """What came."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def type(self) -> str:
        return str(json.loads(self.body)["type"])

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["data"]
        return found

    def verify(self, secret: str = SECRET) -> None:
        """By the scheme's own library. Raises WebhookVerificationError."""
        Webhook(secret).verify(self.body, self.headers)


def answering(status: int, *lines: str, body: bytes = b"") -> Behaviour:
    async def behave(writer: asyncio.StreamWriter) -> None:
        head = [f"HTTP/1.1 {status} It", f"Content-Length: {len(body)}", *lines]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return behave


async def hanging(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def dripping(writer: asyncio.StreamWriter) -> None:
    """A header a moment, for ever."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: 1\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def hanging_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def talking_nonsense(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01 no http \xff\xff\r\n\r\n")
    writer.close()


def sending(size: int, status: int = 200) -> Behaviour:
    """An answer of many bytes, as fast as they are taken."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} OK\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size // 65536):
            writer.write(b"x" * 65536)
            await writer.drain()

    return behave


OK = answering(204)


@dataclass
class TestReceiver:
    """Tests wait by `wait_for`."""

    __test__ = False

    url: str = ""
    behave: Behaviour = OK
    messages: list[Message] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {}
                for line in head[1:]:
                    name, _, value = line.partition(":")
                    headers[name.strip().lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.messages.append(Message(headers, body))
                self._news.set()
                await self.behave(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def wait_for(self, count: int = 1, seconds: float = 20) -> list[Message]:
        """The messages, once there are so many."""
        async with asyncio.timeout(seconds):
            while len(self.messages) < count:
                self._news.clear()
                await self._news.wait()
        return self.messages


@asynccontextmanager
async def receiving(behave: Behaviour = OK, tls: ssl.SSLContext | None = None) -> AsyncIterator[TestReceiver]:
    receiver = TestReceiver(behave=behave)
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await receiver.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the server's own task is ended by the test
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/hooks/of/the-operator?token=hidden-in-the-url"
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks))


def written(path: Path, *rows: dict[str, Any]) -> Path:
    """WEBHOOKS_FILE with these receivers."""
    lines = []
    for row in rows:
        lines.append("[[receiver]]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in ({"secret": SECRET} | row).items()]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path
