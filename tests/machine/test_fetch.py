"""One request to a server in a sandbox: an answer, or a word about why there is none."""

from __future__ import annotations

import pytest

from cubicle.core.chat import Chat
from cubicle.machine.errors import Gone, MachineError
from cubicle.machine.fetch import fetch
from cubicle.machine.stream import Stream

CHAT = Chat("fetch")


# Takes each call, and breaks it off.
RESETS = """
import socket, struct
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    caller = server.accept()[0]
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()
"""


async def test_a_server_that_breaks_off_is_no_server_and_its_sandbox_is_still_there(fleet, monkeypatch):
    """As a browser does that was killed a moment ago: it still takes the call."""
    write = Stream.write

    async def late(self, data):
        with pytest.raises(MachineError):
            await self.read()
        await write(self, data)

    async with fleet.lease(CHAT) as machine, machine.run(["python3", "-c", RESETS]) as server:
        port = int((await anext(server.output))[1])
        for writing in (write, late):  # it may be broken off before the request, or after
            monkeypatch.setattr(Stream, "write", writing)
            with pytest.raises(MachineError):
                await fetch(machine, port, "GET", "/", most=1000)
        await machine.ping()


async def test_a_sandbox_that_went_away_is_not_taken_for_a_server_that_hung_up(fleet):
    async def stop(stream):
        machine.close()

    async with fleet.lease(CHAT) as machine, machine.listen(0, stop) as port:
        with pytest.raises(Gone):
            await fetch(machine, port, "GET", "/", most=1000)
