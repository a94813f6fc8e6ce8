"""What an attack works with: where the service is, what the attacker holds, and what it got."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.attacks import client
from tests.attacks.client import Connection

Action = Callable[["Attacker"], Awaitable[None]]
UNFINISHED = "no answer"
"""What was still under way when the time was over."""
ADDRESS = "127.0.0.2"
"""Others come from another one."""
LATE = "late"
"""Who sent a flood of data and had no answer yet, in the sandbox."""


def once(action: Action) -> Action:
    """Prepare it for the first attack that needs it; it stays for the others."""

    async def first(attacker: Attacker) -> None:
        name = action.__qualname__  # type: ignore[attr-defined]
        if name not in attacker.prepared:
            await action(attacker)
            attacker.prepared.add(name)

    return first


@dataclass(frozen=True)
class Preview:
    """A port of the attacker's sandbox on which a program listens."""

    port: int
    host: str
    """Its name, as a visitor's browser writes it."""
    key: str


@dataclass
class Attacker:
    """One tenant's key, one chat with a sandbox, a link to it; and a limit of time."""

    port: int
    key: str
    chat: str
    link: str
    capability: str
    seconds: float
    short: bool = False
    """Whether all of it is over in a moment: what is sent is a tenth as large."""
    patience: float = client.ANSWER_SECONDS
    """Seconds that it waits for an answer, and for what is under way when its time is over."""
    seen: Counter[str] = field(default_factory=Counter)
    prepared: set[str] = field(default_factory=set)
    preview: Preview | None = None
    ends: float = 0.0
    limit: float = 0.0

    def size(self, most: int) -> int:
        return most // 10 if self.short else most

    @property
    def bearer(self) -> str:
        return f"Authorization: Bearer {self.key}"

    def begin(self, times: float = 1.0) -> None:
        """The time runs from the first connection on, not while the data is made; it is so many times as long."""
        self.seen.clear()
        self.ends = 0.0
        self.limit = self.seconds * times

    @property
    def left(self) -> float:
        self.ends = self.ends or time.monotonic() + self.limit
        return max(0.0, self.ends - time.monotonic())

    async def connect(self) -> Connection:
        return await Connection.open(self.port, ADDRESS)

    async def ask(self, data: bytes, seconds: float | None = None) -> tuple[str, bytes]:
        """One request on a connection of its own, and what came back."""
        connection = await self.connect()
        try:
            await connection.send(data)
            return await connection.answer(seconds=seconds or self.patience)
        except OSError:
            return "closed", b""
        finally:
            connection.close()

    async def once(self, data: bytes) -> None:
        """Send it, whatever happens meanwhile, and count the first status that comes back."""
        connection = await self.connect()
        writing = asyncio.ensure_future(connection.send(data))
        try:
            self.seen[await connection.status()] += 1
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            connection.close()

    async def flood(self, width: int, *data: bytes) -> None:
        """These requests, one after the other, on so many connections, until the time is over."""

        async def one() -> None:
            connection = await self.connect()
            try:
                while self.left:
                    for each in data:
                        if not self.left:
                            break
                        await connection.send(each)
                        status, _ = await connection.answer(seconds=self.patience)
                        self.seen[status] += 1
                        if status in ("closed", "no answer"):
                            connection.close()
                            connection = await self.connect()
            except OSError:
                self.seen["closed"] += 1
            finally:
                connection.close()

        await self.at_once(width, one)

    async def repeat(self, width: int, action: Callable[[], Awaitable[None]]) -> None:
        """The action again and again, so many at a time."""

        async def one() -> None:
            while self.left:
                try:
                    await action()
                except OSError:
                    self.seen["closed"] += 1

        await self.at_once(width, one)

    async def at_once(self, width: int, action: Callable[[], Awaitable[None]]) -> None:
        """So many of it; whatever is still open some time after the end is given up."""
        try:
            async with asyncio.timeout(self.limit + self.patience), asyncio.TaskGroup() as group:
                for _ in range(width):
                    group.create_task(action())  # type: ignore[arg-type]
        except TimeoutError:
            self.seen[UNFINISHED] += 1

    async def hold(self, width: int, data: bytes, *, every: bytes = b"", pause: float = 0.05) -> None:
        """So many connections that send this and then nothing, or `every` now and then; none reads its answer."""

        async def one() -> None:
            connection = await self.connect()
            try:
                await connection.send(data)
                while self.left:
                    await asyncio.sleep(min(pause, self.left))
                    if every:
                        connection.writer.write(every)
                    if connection.writer.is_closing() or connection.reader.at_eof():
                        break
                self.seen["closed" if connection.reader.at_eof() else "waiting"] += 1
            except OSError:
                self.seen["closed"] += 1
            finally:
                connection.close()

        await self.at_once(width, one)

    async def socket(self, path: str, opening: bytes = b"") -> Connection | None:
        """A WebSocket of the attacker's chat by its link, or by this handshake; None when it is refused."""
        connection = await self.connect()
        await connection.send(opening or client.upgrade(f"{path}?key={self.link}"))
        status = await connection.status()
        if status != "101":
            self.seen[status] += 1
            connection.close()
            return None
        return connection

    async def bash(self, command: str, **arguments: object) -> str:
        """Run it in the attacker's sandbox."""
        status, body = await self.ask(client.bash(command, self.key, self.chat, **arguments), 120)
        assert status == "200", (status, body)
        return body.decode()
