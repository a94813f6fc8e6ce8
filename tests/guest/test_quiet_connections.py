"""Connections of the guest in which nothing moves are probed: gVisor may leave both ends waiting for each other."""

from __future__ import annotations

from cubicle.core.chat import Chat
from cubicle.sandbox.fleet import Fleet

PROGRAM = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
one, _ = server.accept()
port = "%04X" % server.getsockname()[1]
for line in open("/proc/net/tcp"):
    row = line.split()
    if row[2].endswith(":" + port) and row[3] == "01":
        print(row[5].partition(":")[0], flush=True)
one.recv(1)
"""
KEEPALIVE = "02"
"""The timer that runs, as /proc/net/tcp names it."""


async def test_a_dialled_connection_is_probed(fleet: Fleet) -> None:
    async with fleet.lease(Chat("c")) as machine, machine.run(["python3", "-c", PROGRAM]) as program:
        output = program.output
        stream = await machine.dial(int((await anext(output))[1]), straight=False)
        assert (await anext(output))[1].split() == [KEEPALIVE.encode()]
        stream.close()
