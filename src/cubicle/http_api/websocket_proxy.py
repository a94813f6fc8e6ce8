"""The relay between a client's WebSocket and one in a sandbox: the same for the terminal and for DevTools.

The backend is dialled before the client is accepted. Either end's close closes the other. Nothing is read from one side
while the other has no room, so a slow reader stops the writer through TCP itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from cubicle.browser.chromium import NoBrowser
from cubicle.core import close_codes
from cubicle.core.chat import BadChatId
from cubicle.fairness.fair_slots import Busy
from cubicle.http_api.held_input import HeldInput
from cubicle.http_api.uvicorn_ws import ClientSocket
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.websocket import ConnectionOver, WebSocketClient
from cubicle.sandbox.fleet import Asleep, NoSandbox

_START_LIMIT = 5.0
_CLOSE_LIMIT = 2.0

IsStarted = Callable[[bytes], bool]
"""Whether a message of the backend shows that the program behind it is up."""


@dataclass(frozen=True, slots=True)
class ProxyEnding:
    """How one end came to its end, as the other is told."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What one relayed connection may do."""

    most: int | None = 16 * 1024**2
    """Largest message from the client, in bytes. None: of any size, passed on by the frame; then the client's socket
    was told to `stream`."""
    idle: float = 12 * 3600.0
    """Seconds without a message either way after which the connection is closed."""
    silence: float = 20.0
    """Seconds of silence after which the backend is pinged, and again until it counts as gone. 0: there is no limit of
    either kind; the server still pings the client."""
    without_code: int = close_codes.BROKEN
    """What a close frame without a code of one end is to the other."""
    cancelled: Callable[[], ProxyEnding] = lambda: ProxyEnding(close_codes.BROKEN)
    """How both ends are closed when the relay is cancelled."""


class WebSocketProxy:
    """One client and one backend, for as long as both are there.

    A message goes on in the very call that it came with. Only where it finds no room does a task wait for it, and
    meanwhile nothing more is read from whoever sent it.
    """

    def __init__(
        self,
        client: WebSocket,
        backend: WebSocketClient,
        machine: Machine | None,
        limits: ProxyLimits,
        is_started: IsStarted | None = None,
        admits: Callable[[bytes], bool] | None = None,
        gate: HeldInput | None = None,
    ) -> None:
        """`admits`: of what the client sends only messages that begin so go on to the backend. `gate`: some of them
        wait; the limits then have a largest message, so that each comes whole."""
        self._client = client
        self._machine = machine
        self._socket = ClientSocket.of(client)
        if limits.most is not None:
            self._socket.limit(limits.most)
        self._backend = backend
        self._limits = limits
        self._time = asyncio.get_running_loop().time
        self._moved = self._time()
        self._delivering = False
        self._stuck = asyncio.Event()
        self._failed: ProxyEnding | None = None
        self._asked = False
        self._is_started = is_started
        self._admits = admits
        self._gate = gate
        self._within = self._dropping = False
        self._started = is_started is None

    async def run(self) -> None:
        """Relay until one end closes; then close the other."""
        ending: ProxyEnding | None = None
        try:
            self._socket.take(self._pass_in)
            async with asyncio.TaskGroup() as group:
                parts = (self._leaving(), self._inward(), self._outward(), self._watch())
                ends = [group.create_task(part) for part in parts]
                done, rest = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                ending = (stopped(self._machine) if self._machine else None) or done.pop().result()
                for task in rest:
                    task.cancel()
            await self._until_started()
        finally:
            ending = ending or self._limits.cancelled()
            await self._backend.close(ending.code, ending.reason)
            await hang_up(self._client, ending.code, ending.reason)

    async def _until_started(self) -> None:
        """What is hung up on while it starts may miss the signal to end: it gets a moment to start first."""
        if self._started or self._is_started is None or not self._asked:
            return
        with suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_START_LIMIT):
                while not self._started:
                    message = await self._backend.receive()
                    self._started = self._is_started(message.encode() if isinstance(message, str) else message)

    async def _leaving(self) -> ProxyEnding:
        """The client's own end; its messages do not come this way."""
        while (event := await self._client.receive())["type"] != "websocket.disconnect":
            pass
        code = event.get("code")
        said = self._socket.has_closed or code != close_codes.NO_CODE  # uvicorn has the same code for one that was lost
        return ProxyEnding(
            self._passed_on(code) if said else close_codes.BROKEN, close_codes.reason(event.get("reason") or "")
        )

    def _passed_on(self, code: int | None) -> int:
        return self._limits.without_code if code == close_codes.NO_CODE else close_codes.passed_on(code)

    async def _inward(self) -> ProxyEnding:
        """Client to backend: what did not find room at once."""
        while True:
            await self._stuck.wait()
            if self._failed is not None:
                return self._failed
            try:
                await self._backend.flush()
                await self._release()
            except SandboxError as error:
                if not self._backend.has_closed:
                    return self._over(error)
            self._stuck.clear()
            self._socket.go_on()

    async def _release(self) -> None:
        """Pass on what was held, in its order, as its time comes."""
        while self._gate is not None and not self._gate.is_empty:
            held, refusal = await self._gate.next()
            if refusal is None:
                self._backend.post(held.message, held.text, True)
                await self._backend.flush()
            elif refusal:
                self._socket.pass_on(refusal, True)

    def _pass_in(self, message: bytes, text: bool, last: bool) -> None:
        if self._failed is not None:
            return
        self._moved = self._time()
        if self._admits is not None:
            self._dropping = self._dropping if self._within else not self._admits(message)
            self._within = not last
            if self._dropping:
                return
        self._asked = True
        if self._gate is not None and self._gate.keeps(message, text):
            if self._gate.is_full:
                self._socket.hold()
            self._stuck.set()
            return
        try:
            if self._limits.most is not None and len(message) > self._limits.most:
                self._failed = ProxyEnding(close_codes.TOO_BIG, f"A message is over {self._limits.most} bytes.")
            elif self._backend.post(message, text, last):
                return
        except SandboxError as error:
            if self._backend.has_closed:
                return  # nobody takes it; the client may still have to read what the backend said before it left
            self._failed = self._over(error)
        self._socket.hold()
        self._stuck.set()

    async def _outward(self) -> ProxyEnding:
        """Backend to client."""
        try:
            await self._backend.follow(self._pass_out, self._room)
        except SandboxError as error:
            if not self._limits.silence:
                await self._room()  # closing has a limit, and would cut off what the client has not read yet
            return self._over(error)
        return ProxyEnding(close_codes.BROKEN)

    def _pass_out(self, message: bytes, text: bool, last: bool) -> bool:
        self._moved = self._time()
        if not self._started and self._is_started is not None:
            self._started = self._is_started(message)
        return self._socket.pass_on(message, text, last)

    async def _room(self) -> None:
        self._delivering = True
        await self._socket.room()
        self._delivering = False

    async def _watch(self) -> ProxyEnding:
        """Find a backend that hangs, and a connection that nobody uses. The server itself pings the client."""
        asked_at = -1
        if not self._limits.silence:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(self._limits.silence)
            if self._time() - self._moved > self._limits.idle:
                return ProxyEnding(close_codes.GOING_AWAY, "Nobody used this connection for a long time.")
            if self._delivering:
                asked_at = -1  # the client is slow; what the backend says cannot be heard meanwhile
            elif asked_at == self._backend.heard:
                return ProxyEnding(close_codes.BROKEN, "The program in the sandbox does not answer.")
            else:
                asked_at = self._backend.heard
                try:
                    self._backend.ping()
                except SandboxError as error:
                    return self._over(error)

    def _over(self, error: SandboxError) -> ProxyEnding:
        """A program that hung up without a word ended, or was ended."""
        match error:
            case ConnectionOver(code=None, reason=""):
                return ProxyEnding(close_codes.BROKEN, "The program in the sandbox ended.")
            case ConnectionOver():
                return ProxyEnding(self._passed_on(error.code), close_codes.reason(error.reason))
            case MachineError():
                return ProxyEnding(close_codes.BROKEN, "The program in the sandbox ended.")
            case _:
                return ProxyEnding(close_codes.BROKEN, "The sandbox went away.")


def stopped(machine: Machine) -> ProxyEnding | None:
    """How everything in a sandbox ends that somebody stops on purpose."""
    return ProxyEnding(close_codes.STOPPED, machine.stopped) if machine.stopped else None


async def hang_up(client: WebSocket, code: int, reason: str = "") -> None:
    """Close a client's WebSocket, whatever state it is in; a page only sees a code if it was accepted first."""
    try:
        async with asyncio.timeout(_CLOSE_LIMIT):
            if client.application_state is WebSocketState.CONNECTING:
                offered = client.scope.get("subprotocols") or [None]
                await client.accept(offered[0])
            if client.client_state is WebSocketState.CONNECTED and client.application_state is WebSocketState.CONNECTED:
                await client.close(code, close_codes.reason(reason))
    except TimeoutError:  # it does not read what it was sent before
        if (socket := ClientSocket.under(client.scope)) is not None:
            socket.abort()
    except (RuntimeError, WebSocketDisconnect):
        pass  # it is gone already


@asynccontextmanager
async def refusing(client: WebSocket) -> AsyncIterator[None]:
    """Turns what cannot be reached into the close codes of the service."""
    try:
        yield
    except (NoSandbox, BadChatId) as error:
        await hang_up(client, close_codes.NO_SUCH_CHAT, str(error))
    except Asleep as error:
        await hang_up(client, close_codes.STOPPED, str(error))
    except (NoBrowser, MachineError) as error:
        await hang_up(client, close_codes.NOT_RUNNING, str(error))
    except Busy as error:
        await hang_up(client, close_codes.TRY_LATER, str(error))
    except SandboxError as error:
        await hang_up(client, close_codes.BROKEN, str(error))
