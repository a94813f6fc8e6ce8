"""Starts Firefox for Playwright, and relays WebDriver BiDi between the two: `python bidi_relay.py FIREFOX ARGUMENT…`.

Playwright drives a stock Firefox by this protocol. It makes every session with a few commands that Firefox ESR has only in
a later version, and gives up where one fails. Each of them goes to Firefox all the same; where that does not know it, the
relay answers that it is done. Before each click in a frame it asks for the frame's element, which Firefox ESR does not
find by the frame's id either: the relay asks for all frames with their windows instead. Playwright reads the address from the
output, and sees the relay's.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

OPTIONAL = {
    "network.addDataCollector": {"collector": "none"},
    "browser.setDownloadBehavior": {},
    "emulation.setMediaFeaturesOverride": {},
    "emulation.setScreenOrientationOverride": {},
    "emulation.setScreenSettingsOverride": {},
    "permissions.setPermission": {},
}
"""Commands that the tests can do without, and what is answered in Firefox's place."""
FRAMES = (
    """() => [...document.querySelectorAll("iframe, frame, object, embed")].map((one) => [one, one.contentWindow])"""
)
WITHOUT_ARGUMENTS = "{ apply() { return this() } }"
"""Of a script that Playwright has run before those of a page. Firefox calls `(script).apply(this, arguments)`
(`executeInGlobalWithBindings` in its Realm.sys.mjs), and in a frame with an opaque origin the arguments, though there are
none, may be of the document before: "Permission denied to access property "length"" is then an error of the page. A page
of nobody with `<iframe sandbox="allow-scripts">` has it too, with a script as short as `1`, and never without one."""
UNKNOWN = {"unknown command", "unsupported operation", "invalid argument"}
LISTENING = re.compile(rb"WebDriver BiDi listening on (ws://\S+)")


class Relay:
    """One connection of Playwright to Firefox."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._optional: dict[int, str] = {}
        """Optional commands that are not answered yet."""
        self._frames: dict[int, str] = {}
        """Frames whose elements are looked for, by the command that asks for all."""

    async def __call__(self, client: ServerConnection) -> None:
        assert client.request is not None
        address = self._address + client.request.path
        async with connect(address, compression=None, max_size=None, ping_interval=None) as firefox:
            with suppress(asyncio.CancelledError):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._copy(client, firefox))
                    group.create_task(self._copy(firefox, client))

    async def _copy(self, source: Connection, target: Connection) -> None:
        with suppress(ConnectionClosed):
            async for message in source:
                text = message if isinstance(message, str) else message.decode()
                await target.send(self._asked(text) if isinstance(source, ServerConnection) else self._answered(text))
        await target.close()

    def _asked(self, text: str) -> str:
        command = json.loads(text)
        if command.get("method") in OPTIONAL:
            self._optional[command["id"]] = command["method"]
        if command.get("method") == "browsingContext.locateNodes" and command["params"]["locator"]["type"] == "context":
            self._frames[command["id"]] = command["params"]["locator"]["value"]["context"]
            return json.dumps({"id": command["id"], **_all_frames(command["params"]["context"])})
        if command.get("method") == "script.addPreloadScript" and not command["params"].get("arguments"):
            function = command["params"]["functionDeclaration"]
            command["params"]["functionDeclaration"] = f"Object.assign({function}, {WITHOUT_ARGUMENTS})"
            return json.dumps(command)
        return text

    def _answered(self, text: str) -> str:
        if not self._optional and not self._frames:
            return text
        answer = json.loads(text)
        frame = self._frames.pop(answer.get("id"), None)
        if frame is not None:
            return json.dumps({**answer, "result": {"nodes": _elements_of(frame, answer)}})
        method = self._optional.pop(answer.get("id"), None)
        if method is None or answer.get("error") not in UNKNOWN:
            return text
        return json.dumps({"type": "success", "id": answer["id"], "result": OPTIONAL[method]})


def _all_frames(parent: str) -> dict[str, Any]:
    params = {"functionDeclaration": FRAMES, "target": {"context": parent}, "awaitPromise": False}
    return {"method": "script.callFunction", "params": params}


def _elements_of(frame: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
    pairs = answer.get("result", {}).get("result", {}).get("value", [])
    found = [pair["value"] for pair in pairs]
    return [element for element, window in found if window.get("value", {}).get("context") == frame]


async def main(program: list[str]) -> int:
    firefox = await asyncio.create_subprocess_exec(*program, stdout=PIPE, stderr=STDOUT)
    assert firefox.stdout is not None
    servers = []
    async for line in firefox.stdout:
        found = LISTENING.search(line)
        if found:
            server = await serve(Relay(found[1].decode()), "127.0.0.1", 0, compression=None, max_size=None)
            servers.append(server)
            port = server.sockets[0].getsockname()[1]
            line = f"WebDriver BiDi listening on ws://127.0.0.1:{port}\n".encode()
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
    for server in servers:
        server.close()
    return await firefox.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
