"""Something in the sandbox that says it is the browser, and talks nonsense."""

from __future__ import annotations

import asyncio
import http
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from cubicle.machine.machine import Machine
from cubicle.machine.stream import Stream

ADDRESS = "ws://127.0.0.1:9222/devtools/browser/b"
EVENTS = (
    *("Target.targetCreated", "Target.targetInfoChanged", "Target.targetDestroyed", "Target.detachedFromTarget"),
    *("Page.screencastFrame", "Page.screencastVisibilityChanged", "Page.frameStartedLoading", "Page.frameNavigated"),
    *("Page.navigatedWithinDocument", "Page.javascriptDialogOpening", "Page.javascriptDialogClosed"),
    *(
        "Page.fileChooserOpened",
        "Page.downloadWillBegin",
        "Page.downloadProgress",
        "Inspector.targetCrashed",
        "Page.frameRequestedNavigation",
        "Runtime.bindingCalled",
        "",
        "x.y",
    ),
)
NAMES = (
    *("targetId", "targetInfo", "type", "title", "url", "sessionId", "data", "metadata", "deviceWidth", "deviceHeight"),
    *("offsetTop", "pageScaleFactor", "timestamp", "visible", "frame", "parentId", "id", "frameId", "message"),
    *("defaultPrompt", "mode", "backendNodeId", "guid", "suggestedFilename", "state", "receivedBytes", "totalBytes"),
    *(
        "entries",
        "currentIndex",
        "targetInfos",
        "result",
        "value",
        "object",
        "objectId",
        "node",
        "attributes",
        "openerId",
        "reason",
        "name",
    ),
)
TARGET = {"targetId": "T", "type": "page", "title": "t", "url": "about:blank", "attached": False}


class Nonsense:
    """Values of every kind in every place, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        dice = self._dice
        match dice.randrange(9 if depth < 3 else 7):
            case 0:
                return None
            case 1:
                return dice.choice((True, False))
            case 2:
                return dice.choice((0, -1, 1, 2**63, -(2**70), 10**400, 1e308, float("inf"), float("nan")))
            case 3:
                return dice.choice(("", "page", "T", "S", "/9j/4AAQ", "!", "\ud800", "\x00\r\n", "x" * 70_000))
            case 4:
                return dict(TARGET)
            case 5 | 6:
                return dice.choice(("T", "S", "page", 1))
            case 7:
                return [self.value(depth + 1) for _ in range(dice.randrange(4))]
            case _:
                return self.fields(depth + 1)

    def fields(self, depth: int = 0) -> dict[str, Any]:
        return {self._dice.choice(NAMES): self.value(depth) for _ in range(self._dice.randrange(9))}

    def event(self) -> str:
        message: dict[str, Any] = {"method": self._dice.choice(EVENTS), "params": self.fields()}
        if self._dice.random() < 0.8:
            message["sessionId"] = self._dice.choice(("S", "S", "other", 3))
        return json.dumps(message)

    def answer(self, number: int, method: str) -> str:
        """Often the truth, so that the talk goes on."""
        truth = {
            "Target.getTargets": {"targetInfos": [TARGET]},
            "Target.attachToTarget": {"sessionId": "S"},
            "Target.setDiscoverTargets": {},
        }.get(method)
        result = truth if truth is not None and self._dice.random() < 0.9 else self.fields()
        return json.dumps({"id": number, self._dice.choice(("result", "result", "result", "error")): result})


async def talk(socket: ServerConnection, nonsense: Nonsense) -> None:
    async def chatter() -> None:
        with suppress(ConnectionClosed):
            while True:
                await socket.send(nonsense.event())
                await asyncio.sleep(0.001)

    chattering = asyncio.create_task(chatter())
    try:
        with suppress(ConnectionClosed):
            async for message in socket:
                asked = json.loads(message)
                await socket.send(nonsense.answer(asked["id"], asked["method"]))
    finally:
        chattering.cancel()


def plain(connection: ServerConnection, request: Request) -> Response | None:
    """The JSON addresses of DevTools."""
    if not request.path.startswith("/json"):
        return None
    found: Any = {"webSocketDebuggerUrl": ADDRESS, "Browser": "Nonsense/1"}
    response = connection.respond(
        http.HTTPStatus.OK, json.dumps(found if "version" in request.path else [{**TARGET, "id": "T"}])
    )
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = "application/json"
    return response


@asynccontextmanager
async def nonsense_in(machine: Machine, seed: int) -> AsyncIterator[None]:
    """Have it where the sandbox's browser would be."""
    nonsense = Nonsense(seed)
    async with serve(
        lambda socket: talk(socket, nonsense), "127.0.0.1", 0, process_request=plain, compression=None
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with machine.listen(9222, lambda stream: _joined(stream, port)):
            yield


async def _joined(stream: Stream, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def inward() -> None:
        while data := await reader.read(65536):
            await stream.write(data)
        stream.write_eof()

    task = asyncio.create_task(inward())
    try:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()
    finally:
        writer.transport.abort()  # what is not sent yet would hold the socket beyond the test
        task.cancel()
