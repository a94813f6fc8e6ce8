"""Starts Firefox for Playwright, and relays WebDriver BiDi between the two: `python bidi_relay.py FIREFOX ARGUMENT…`.

Playwright drives a stock Firefox by this protocol. It makes every session with a few commands that Firefox ESR has only in
a later version, and gives up where one fails. Each of them goes to Firefox all the same; where that does not know it, the
relay answers that it is done. Playwright reads the address from the output, and sees the relay's.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import suppress

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
UNKNOWN = {"unknown command", "unsupported operation", "invalid argument"}
LISTENING = re.compile(rb"WebDriver BiDi listening on (ws://\S+)")


class Relay:
    """One connection of Playwright to Firefox."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._optional: dict[int, str] = {}
        """Optional commands that are not answered yet."""

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
        return text

    def _answered(self, text: str) -> str:
        if not self._optional:
            return text
        answer = json.loads(text)
        method = self._optional.pop(answer.get("id"), None)
        if method is None or answer.get("error") not in UNKNOWN:
            return text
        return json.dumps({"type": "success", "id": answer["id"], "result": OPTIONAL[method]})


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
