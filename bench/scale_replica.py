"""One replica of bench/scale.py, in a process of its own: the true driver, and what it costs at so many chats.

python -m bench.scale_replica TERMS      prints one JSON object with what was measured
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import uvloop

import cubicle.app  # noqa: F401 - a replica has all of it in memory
from bench.scale_terms import Terms, owner
from cubicle import heap
from cubicle.cli.process import settle_garbage
from cubicle.drivers.kubernetes.client import Object
from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.machine.errors import SandboxError
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import State
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.warm_pool import new_name

_FIRST_OWNER = 1 << 64
"""Owners of chats that this replica makes: beyond those that were there."""


@dataclass
class Measured:
    """What the parent reads; milliseconds where nothing else is said."""

    claims: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    """Claims that found no blank pod, and made one."""
    failed: list[str] = field(default_factory=list)
    claim_seconds: float = 0.0
    adopt_seconds: float = 0.0
    connected: int = 0
    stops: list[float] = field(default_factory=list)
    events: int = 0
    """Of the watch, while chats were claimed."""
    finds: list[float] = field(default_factory=list)
    connects: list[float] = field(default_factory=list)
    lists: list[float] = field(default_factory=list)
    listed: int = 0
    sweeps: list[float] = field(default_factory=list)
    swept: dict[str, int] = field(default_factory=dict)
    lag: dict[str, float] = field(default_factory=dict)
    """The longest time that the event loop stood still, by what was done."""
    memory_mb: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_mb: float = 0.0


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024**2


class Replica:
    """Does each thing that a replica does, and notes what it took."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.found = Measured()
        self._driver: KubernetesDriver

    async def run(self) -> Measured:
        settle_garbage()
        self.found.memory_mb["of the program"] = memory_mb()
        self._driver = self._terms.driver(pool_size=self._terms.blank)
        fleet = Fleet(self._driver, ChatIndex(Path(self._terms.folder) / "chats"))
        async with AsyncExitStack() as stack:
            began = time.perf_counter()
            async with self._step("start, with a connection to each chat"):
                await stack.enter_async_context(fleet)
                while not fleet._adoption._is_over:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            self.found.adopt_seconds = time.perf_counter() - began
            self.found.connected = len([1 for slot in fleet._slots.values() if slot.machine is not None])
            await self._pool()
            await self._measure()
        self.found.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return self.found

    async def _measure(self) -> None:
        async with self._step("list"):
            for _ in range(3):
                with self._timed(self.found.lists):
                    seen = await self._driver.list()
            self.found.listed = len([one for one in seen if one.owner and one.state is State.RUNNING])
            del seen
        async with self._step("find and connect"):
            await self._look_up(min(200, self._terms.chats))
        async with self._step("claims"):
            self._count_events()
            await self._claim_all()
        async with self._step("stops"):
            await self._stop(min(20, self._terms.chats // 10))
        async with self._step("sweep"):
            for _ in range(2):
                with self._timed(self.found.sweeps):
                    done = await self._driver.sweeper.sweep(0.0)
                self.found.swept |= done

    @contextmanager
    def _timed(self, samples: list[float]) -> Iterator[None]:
        began = time.perf_counter()
        yield
        samples.append((time.perf_counter() - began) * 1000)

    @asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        """Watch the event loop, memory and processor time meanwhile."""
        worst, used = 0.0, resource.getrusage(resource.RUSAGE_SELF)

        async def watch() -> None:
            nonlocal worst
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.01)
                worst = max(worst, time.perf_counter() - before - 0.01)

        watching = asyncio.ensure_future(watch())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        now = resource.getrusage(resource.RUSAGE_SELF)
        self.found.lag[name] = worst * 1000
        self.found.memory_mb[f"after {name}"] = memory_mb()
        self.found.cpu_seconds[name] = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime

    async def _pool(self) -> None:
        """Wait until the cluster has made the blank pods."""
        blank = self._driver._blank
        async with asyncio.timeout(600):
            while blank.count() < self._terms.blank:
                async with blank._follower.changed:
                    await blank._follower.changed.wait()

    def _count_events(self) -> None:
        follower = self._driver._blank._follower
        apply = follower._apply

        async def counted(event: str, found: Object) -> str:
            self.found.events += 1
            return await apply(event, found)

        follower._apply = counted  # type: ignore[method-assign]

    async def _look_up(self, count: int) -> None:
        """As a call for a chat that another replica has made: whose is it, and reach it."""
        for number in range(count):
            with self._timed(self.found.finds):
                name = await self._driver.find(owner(number))
            assert name is not None
            self._driver._reached.pop(name, None)
            with self._timed(self.found.connects):
                (await self._driver.connect(name)).close()

    async def _stop(self, count: int) -> None:
        for number in range(count):
            name = await self._driver.find(owner(_FIRST_OWNER + number))
            assert name is not None
            with self._timed(self.found.stops):
                await self._driver.stop(name)

    async def _claim_all(self) -> None:
        """So many a second, whether those before are done or not."""
        count = int(self._terms.rate * self._terms.seconds)
        began = time.perf_counter()
        tasks = []
        for number in range(count):
            due = began + number / self._terms.rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.ensure_future(self._claim(owner(_FIRST_OWNER + number), due)))
        await asyncio.gather(*tasks)
        self.found.claim_seconds = time.perf_counter() - began

    async def _claim(self, chat: str, due: float) -> None:
        try:
            name = await self._driver.take_blank(chat)
            if name is None:
                await self._driver.start(new_name(), chat)
        except SandboxError as error:
            self.found.failed.append(str(error))
            return
        (self.found.claims if name is not None else self.found.cold).append((time.perf_counter() - due) * 1000)


def main(told: str) -> None:
    heap.keep_small()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(Replica(Terms.of(told)).run())
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(sys.argv[1])
