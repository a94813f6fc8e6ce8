"""A TCP connection into a sandbox over a WebSocket: binary messages are bytes, the text `eof` ends a direction."""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.websockets import WebSocket

from cubicle.core import close_codes
from cubicle.core.tcp_messages import EOF
from cubicle.http_api.uvicorn_ws import ClientSocket
from cubicle.http_api.websocket_proxy import hang_up
from cubicle.machine.errors import SandboxError
from cubicle.machine.stream import StreamConnection

_MAX_MESSAGE = 128 * 1024


class TcpForward:
    """Until both directions ended, or one side went away. Nothing is read from a side while the other has no room."""

    def __init__(self, client: WebSocket, stream: StreamConnection) -> None:
        self._client = client
        self._socket = ClientSocket.of(client)
        self._socket.limit(_MAX_MESSAGE)
        self._socket.be_patient()
        self._stream = stream
        self._unsent: deque[bytes] = deque()
        self._came = asyncio.Event()
        self._waits = self._ends = False

    async def run(self) -> None:
        self._socket.take(self._take)
        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(self._leaving())
            tasks = [group.create_task(self._inward()), group.create_task(self._outward())]
            going = set(tasks)
            while going:
                done, _ = await asyncio.wait({*going, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if leaving in done or not all(task.result() for task in tasks if task in done):
                    break
                going -= done
            for task in (*tasks, leaving):
                task.cancel()
        await hang_up(self._client, close_codes.NORMAL)

    async def _leaving(self) -> None:
        """Returns when the client goes away; its messages do not come this way."""
        while (await self._client.receive())["type"] != "websocket.disconnect":
            pass

    def _take(self, message: bytes, text: bool, last: bool) -> None:
        if self._ends:
            return
        if text:
            self._ends = message == EOF.encode()
        elif not self._waits and self._put(message):
            return
        else:
            self._unsent.append(message)
        self._waits = True
        self._socket.hold()
        self._came.set()

    def _put(self, message: bytes) -> bool:
        try:
            return self._stream.put(message)
        except SandboxError:
            return False  # writing it says why

    async def _inward(self) -> bool:
        """Client to program; whether the client just had no more to send."""
        try:
            while True:
                await self._came.wait()
                self._came.clear()
                while self._unsent:
                    await self._stream.write(self._unsent.popleft())
                if self._ends:
                    break
                self._waits = False
                self._socket.go_on()  # may hand over the next messages, and the end, in this very call
            self._stream.write_eof()
        except SandboxError:
            return False
        return True

    async def _outward(self) -> bool:
        """Program to client; whether the program just had no more to send. A client may read the end slowly."""
        try:
            while chunk := await self._stream.read():
                if not self._socket.pass_on(chunk, False):
                    await self._socket.room()
        except SandboxError:
            return False
        if not self._socket.pass_on(EOF.encode(), True):
            await self._socket.room()
        return True
