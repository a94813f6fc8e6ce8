"""Processes beside the service: one measures for the victim, one attacks, one shows how busy the machine is.

The last is a service of nothing: it runs `true` for each request. How long that takes under an attack is what the machine
takes away from everybody, and no doing of the service.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import uvloop

from tests.attacks import (  # noqa: F401
    from_sandbox,
    table,
    through_port,
    unauthenticated,
    with_key,
    with_link,
    with_newer_protocol,
)
from tests.attacks.attacker import Attacker
from tests.attacks.client import Connection, bash, request
from tests.attacks.processor_waits import all_waited, waited_since

PAUSE = 0.005


class Victim:
    """Calls `true` on a connection that it keeps, and polls `/health` on new ones, until it is told to stop.

    Beside that it asks the service of nothing.
    """

    def __init__(self, port: int, control: int, key: str, pid: int) -> None:
        self._port, self._control, self._key, self._pid = port, control, key, pid
        self._samples: dict[str, list[tuple[float, float]]] = {}
        self._failed: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._samples, self._failed = {"bash": [], "health": [], "control": []}, []
        health = request("GET", "/health")
        polls = (self._polls("health", self._port, health), self._polls("control", self._control, health))
        self._tasks = [asyncio.create_task(each) for each in (self._calls(), *polls)]

    async def stop(self) -> dict[str, Any]:
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        return {**self._samples, "failed": self._failed}

    async def _calls(self) -> None:
        connection = await Connection.open(self._port)
        while True:
            if not await self._timed("bash", connection, bash("true", self._key, "victim")):
                connection = await Connection.open(self._port)
            await asyncio.sleep(PAUSE)

    async def _polls(self, what: str, port: int, data: bytes) -> None:
        while True:
            await self._timed(what, None, data, port)
            await asyncio.sleep(PAUSE)

    async def _timed(self, what: str, connection: Connection | None, data: bytes, port: int = 0) -> bool:
        """One call; whether it was answered as it should."""
        began, ready = time.monotonic(), self._waited()
        own = connection or await Connection.open(port)
        try:
            await own.send(data)
            status, body = await own.answer()
        finally:
            # One that was cut off by the end of the measurement counts as long as it took until then.
            taken = time.monotonic() - began
            ours, service = (waited_since(before, now) for before, now in zip(ready, self._waited(), strict=True))
            self._samples[what].append((taken, max(ours, service)))
            if connection is None:
                own.close()
        fine = status == "200" and (what != "bash" or b'"isError":false' in body)
        if not fine:
            self._failed.append(f"{what}: {status} {body[:500]!r}")
        return fine

    def _waited(self) -> tuple[dict[str, float], dict[str, float]]:
        """How long the machine had no processor for us, and for the service: often at the same time."""
        return all_waited(), all_waited(self._pid)


async def serve_victim(orders: asyncio.StreamReader, **options: Any) -> None:
    victim = Victim(**options)
    while order := await orders.readline():
        if order.strip() == b"start":
            victim.start()
            say({})
        else:
            say(await victim.stop())


async def serve_attacker(orders: asyncio.StreamReader, **options: Any) -> None:
    attacker = Attacker(**options)
    if not attacker.short:
        os.nice(10)  # a real one has a machine of its own
    while order := await orders.readline():
        name, times = order.decode().split()
        attack = table.ATTACKS[name]
        if attack.prepare is not None:
            await attack.prepare(attacker)
        say({"prepared": True})
        await orders.readline()
        attacker.begin(float(times))
        await attack.run(attacker)
        seen = dict(attacker.seen)
        if attack.tidy is not None:
            await attack.tidy(attacker)
        say(seen)


async def serve_control(orders: asyncio.StreamReader, **_options: Any) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # the measurement ended meanwhile
            writer.close()
            return
        await (await asyncio.create_subprocess_exec("/bin/true")).wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        while await orders.readline():
            say({"port": server.sockets[0].getsockname()[1]})


ROLES = {"victim": serve_victim, "attacker": serve_attacker, "control": serve_control}


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def main() -> None:
    role, options = sys.argv[1], json.loads(sys.argv[2])
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    await ROLES[role](orders, **options)


if __name__ == "__main__":
    uvloop.run(main())
