"""A DevTools connection to a sandbox's browser: calls, notices, events. Everything it says is hostile JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cubicle.browser import chromium
from cubicle.core.untrusted_json import BadJson, parse_object
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.websocket import WebSocketClient

_MAX_WAITING = 4096
_CALL_LIMIT = 10.0
_MAX_VALUES = 100_000


class CdpError(SandboxError):
    """The browser refused a call, or did not answer it in time."""


@dataclass(frozen=True, slots=True)
class CdpEvent:
    """Something that happened, in one attached target or, without a session, in the browser."""

    session: str
    method: str
    params: dict[str, Any]


class CdpConnection:
    """One connection. `closed` is set when it is over."""

    def __init__(self, socket: WebSocketClient, on_event: Callable[[CdpEvent], None]) -> None:
        self._socket = socket
        self._on_event = on_event
        self._next = 1
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._outbox: asyncio.Queue[str] = asyncio.Queue(_MAX_WAITING)
        self.closed = asyncio.Event()

    def ask(self, method: str, session: str = "", **params: Any) -> asyncio.Future[dict[str, Any]]:
        """Ask for something; the answer comes when it comes."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        number = self._post(method, session, params)
        self._waiting[number] = answer
        answer.add_done_callback(lambda done: self._settle(number, done))
        if self.closed.is_set() or len(self._waiting) > _MAX_WAITING:
            self.end()
        return answer

    def _settle(self, number: int, done: asyncio.Future[dict[str, Any]]) -> None:
        self._waiting.pop(number, None)
        if not done.cancelled():
            done.exception()  # nobody may be left who wants to know

    async def call(
        self, method: str, session: str = "", *, limit: float = _CALL_LIMIT, **params: Any
    ) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        try:
            async with asyncio.timeout(limit):
                return await self.ask(method, session, **params)
        except TimeoutError:
            raise CdpError(f"The browser did not answer within {limit:g} s.") from None

    def tell(self, method: str, session: str = "", **params: Any) -> None:
        """Ask for something whose answer nobody needs."""
        self._post(method, session, params)

    def _post(self, method: str, session: str, params: dict[str, Any]) -> int:
        number = self._next
        self._next += 1
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        try:
            self._outbox.put_nowait(json.dumps(message))
        except asyncio.QueueFull:
            self.end()
        return number

    async def _write(self) -> None:
        try:
            while True:
                await self._socket.send(await self._outbox.get())
        except SandboxError:
            self.end()

    async def _read(self) -> None:
        try:
            while True:
                self._take(await self._socket.receive())
        except SandboxError:
            self.end()

    def _take(self, text: str | bytes) -> None:
        try:
            message = parse_object(text, max_size=chromium.MAX_MESSAGE, max_values=_MAX_VALUES)
        except BadJson:
            return
        number, method = message.get("id"), message.get("method")
        if isinstance(number, int):
            waiting = self._waiting.get(number)
            if waiting is not None and not waiting.done():
                result = message.get("result")
                if isinstance(result, dict):
                    waiting.set_result(result)
                else:
                    waiting.set_exception(CdpError(str(message.get("error"))[:500]))
        elif isinstance(method, str):
            params, session = message.get("params"), message.get("sessionId")
            fields = params if isinstance(params, dict) else {}
            self._on_event(CdpEvent(session if isinstance(session, str) else "", method, fields))

    def end(self) -> None:
        """It is over: whoever waits for an answer hears so."""
        self.closed.set()
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(CdpError("The browser is gone."))


@asynccontextmanager
async def attached(machine: Machine, on_event: Callable[[CdpEvent], None]) -> AsyncIterator[CdpConnection]:
    """A connection to the whole browser, for as long as the block lasts. NoBrowser when there is none."""
    socket = await chromium.connect(machine, await chromium.endpoint(machine))
    devtools = CdpConnection(socket, on_event)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(devtools._read()), group.create_task(devtools._write())]
            try:
                yield devtools
            finally:
                for task in tasks:
                    task.cancel()
    finally:
        devtools.end()
        await socket.close()
