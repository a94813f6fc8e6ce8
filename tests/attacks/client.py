"""A small HTTP and WebSocket client that can do what no library does."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
from collections.abc import Iterable

ACCEPT = "application/json, text/event-stream"
ANSWER_SECONDS = 10.0


class Connection:
    """One connection, as raw as it is wanted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, address: str = "127.0.0.1") -> Connection:
        """From this address of the machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20, local_addr=(address, 0)))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> str:
        """The status of the next answer, or how the connection ended."""
        return (await self.answer(body=False))[0]

    async def answer(self, *, body: bool = True, seconds: float = ANSWER_SECONDS) -> tuple[str, bytes]:
        """The next answer; its status is a word when there is none."""
        try:
            async with asyncio.timeout(seconds):
                head = await self.reader.readuntil(b"\r\n\r\n")
                status = head.split(b" ", 2)[1].decode()
                return status, await self._body(head.lower()) if body else b""
        except TimeoutError:
            return "no answer", b""
        except (OSError, EOFError, asyncio.LimitOverrunError, IndexError):
            return "closed", b""

    async def _body(self, head: bytes) -> bytes:
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name == b"content-length":
                return await self.reader.readexactly(int(value))
            if name == b"transfer-encoding":
                return await self._chunks()
        return b""

    async def _chunks(self) -> bytes:
        parts = []
        while size := int((await self.reader.readline()).split(b";")[0], 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        await self.reader.readline()
        return b"".join(parts)

    def close(self) -> None:
        self.writer.transport.abort()


def request(
    method: str, path: str, headers: Iterable[str] = (), body: bytes = b"", *, host: str = "127.0.0.1"
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    lines += [f"Content-Length: {len(body)}"] if body or method in ("POST", "PUT") else []
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


def call(method: str, params: object, key: str, chat: str, *more: str) -> bytes:
    """An MCP request."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    return post(body, key, chat, *more)


def post(body: bytes, key: str, chat: str, *more: str) -> bytes:
    headers = [f"Accept: {ACCEPT}", "Content-Type: application/json", f"Authorization: Bearer {key}"]
    return request("POST", "/mcp", [*headers, f"X-Chat-Id: {chat}", *more], body)


def bash(command: str, key: str, chat: str, **arguments: object) -> bytes:
    arguments = {"command": command, "description": "test", **arguments}
    return call("tools/call", {"name": "bash_tool", "arguments": arguments}, key, chat)


def upgrade(path: str, *headers: str, host: str = "127.0.0.1") -> bytes:
    nonce = base64.b64encode(os.urandom(16)).decode()
    offer = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {nonce}"]
    return request("GET", path, [*offer, *headers], host=host)


def frame(opcode: int, payload: bytes = b"", *, final: bool = True, claimed: int | None = None) -> bytes:
    """A client's frame, masked with zeros; `claimed` is the length that its header tells."""
    length = len(payload) if claimed is None else claimed
    first = (0x80 if final else 0) | opcode
    if length < 126:
        header = struct.pack("!BB", first, 0x80 | length)
    elif length < 1 << 16:
        header = struct.pack("!BBH", first, 0x80 | 126, length)
    else:
        header = struct.pack("!BBQ", first, 0x80 | 127, length)
    return header + bytes(4) + payload


async def close_code(connection: Connection) -> str:
    """Reads a WebSocket to its end: the code it was closed with, or a word."""
    reader = connection.reader
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                first, second = await reader.readexactly(2)
                length = second & 0x7F
                if length == 126:
                    length = int.from_bytes(await reader.readexactly(2), "big")
                elif length == 127:
                    length = int.from_bytes(await reader.readexactly(8), "big")
                payload = await reader.readexactly(length)
                if first & 0xF == 8:
                    return str(int.from_bytes(payload[:2], "big"))
    except TimeoutError:
        return "no answer"
    except (OSError, EOFError):
        return "closed"
