"""Runs one attack beside a victim, and measures both.

Attacker, victim, service and sandboxes share one machine, so a latency by the clock also shows how the kernel shares out
the processors. From each call is taken off how long one thread (the service's main one, one that may have held the
interpreter's lock, or the victim's), whichever waited longest, was ready to run and had no processor, and for how long the
host of a virtual machine took the processors away. What is left is what the service itself made the call wait for; it is
what is judged, and it says nothing of an attack that takes the processors away from everybody: that is for the limits of
sandboxes, which the memory driver of these tests has not. A table shows both figures, the one by the clock in brackets. The
count of stalls and the calls that failed do not depend on a call's figure.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import httpx

from cubicle.chat.links import Links, kept_secret
from cubicle.core.chat import Chat
from cubicle.core.identity import LinkAccess
from cubicle.core.keys import KeyRing
from cubicle.core.signing import Grant, Reach
from cubicle.drivers.memory import MemoryDriver
from tests.attacks.client import ANSWER_SECONDS, bash
from tests.attacks.table import Attack
from tests.support.process import free_port

VICTIM_KEY, ATTACKER_KEY = "victim-key-0123456789abcdef0123456789", "attacker-key-0123456789abcdef0123456789"
STALL = 0.25
MAX_GROWTH_MB = 50
SETTLE_SECONDS = 15.0


@dataclass(frozen=True)
class Measured:
    """What a victim saw for a while, and what the service took meanwhile."""

    bash: list[float]
    health: list[float]
    control: list[float]
    wall: list[float]
    """The calls of `bash` by the clock on the wall: the others are without what the machine kept them waiting."""
    failed: list[str]
    """Calls of the victim that got another answer than they should, or none."""
    stalls: list[float]
    """Seconds of each hold-up of the service's loop."""
    rss_before: float
    rss_after: float
    seen: dict[str, int]

    @property
    def p99(self) -> float:
        return percentile(self.bash)

    @property
    def health_p99(self) -> float:
        return percentile(self.health)

    @property
    def noise(self) -> float:
        """What a service that does nothing took meanwhile: the machine was that busy."""
        return percentile(self.control) if self.control else 0.0

    @property
    def long_stalls(self) -> int:
        """Those that are longer than even a service that does nothing was kept waiting."""
        return sum(seconds > STALL + self.noise for seconds in self.stalls)

    def __add__(self, more: Measured) -> Measured:
        """Both, one after the other."""
        return Measured(
            self.bash + more.bash,
            self.health + more.health,
            self.control + more.control,
            self.wall + more.wall,
            self.failed + more.failed,
            self.stalls + more.stalls,
            self.rss_before,
            more.rss_after,
            dict(Counter(self.seen) + Counter(more.seen)),
        )

    def row(self, name: str) -> str:
        got = " ".join(f"{what}:{count}" for what, count in sorted(self.seen.items()))
        return (
            f"{name:26} {len(self.bash):5} calls  p99 {self.p99 * 1000:6.0f} ms ({percentile(self.wall) * 1000:.0f})  health {self.health_p99 * 1000:6.0f} ms  "
            f"machine {self.noise * 1000:4.0f} ms  "
            f"stalls {self.long_stalls} (longest {max(self.stalls, default=0) * 1000:.0f} ms)  "
            f"RSS {self.rss_before:.0f} -> {self.rss_after:.0f} MB  {got}"
        )


def percentile(samples: list[float]) -> float:
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * 99 // 100) - 1)] if ordered else float("inf")


def _rss(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


class Worker:
    """A process that takes orders as lines, and answers each with one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, role: str, **options: Any) -> Self:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.attacks.worker", role, json.dumps(options)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=1 << 26,
        )
        return cls(process)

    async def order(self, text: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{text}\n".encode())
        line = await self._process.stdout.readline()
        assert line, f"the worker ended at {text!r}: its standard error says why"
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class Ground:
    """The service, its victim and its attacker."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], victim: Worker, attacker: Worker) -> None:
        self._stalls = folder / "stalls"
        self._process, self._victim, self._attacker = process, victim, attacker

    def rss(self) -> float:
        """MB of memory that the service and its network workers hold."""
        return sum(map(_rss, self._processes()))

    def _processes(self) -> list[int]:
        """The service, and those of its descendants that are no sandbox."""
        found, new = [self._process.pid], [self._process.pid]
        while new:
            children = Path(f"/proc/{new[0]}/task/{new[0]}/children").read_text().split()
            ours = [int(pid) for pid in children if b"cubicle.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            found += ours
            new = [*new[1:], *ours]
        return found

    async def idle(self, seconds: float) -> Measured:
        before, began = self.rss(), time.monotonic()
        await self._victim.order("start")
        await asyncio.sleep(seconds)
        return self._measured(await self._victim.order("stop"), began, before, self.rss(), {})

    async def run(self, attack: Attack, times: float = 1.0) -> Measured:
        """For as long as attacks last here, or so many times as long."""
        await self._attacker.order(f"{attack.name} {times}")
        before, began = self.rss(), time.monotonic()
        await self._victim.order("start")
        seen = await self._attacker.order("go")
        samples = await self._victim.order("stop")
        after = await self._settled(before)
        return self._measured(samples, began, before, after, seen)

    async def _settled(self, before: float) -> float:
        """MB once memory is back, or the time for it is over."""
        ends = time.monotonic() + SETTLE_SECONDS
        while (now := self.rss()) > before + MAX_GROWTH_MB and time.monotonic() < ends:
            await asyncio.sleep(0.1)
        return now

    def _measured(
        self, samples: dict[str, Any], began: float, before: float, after: float, seen: dict[str, int]
    ) -> Measured:
        lines = [json.loads(line) for line in self._stalls.read_text().splitlines()]
        stalls = [line["seconds"] for line in lines if line["at"] >= began]
        failed = samples.pop("failed")
        taken = {what: [max(0.0, wall - waited) for wall, waited in pairs] for what, pairs in samples.items()}
        wall = [wall for wall, _ in samples["bash"]]
        return Measured(taken["bash"], taken["health"], taken["control"], wall, failed, stalls, before, after, seen)


@asynccontextmanager
async def ground(
    folder: Path,
    seconds: float,
    patience: float = ANSWER_SECONDS,
    short: bool = False,
    port: int = 0,
    options: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Ground]:
    """Everything up, both chats with a sandbox that was used. `port`: that of the service, if the caller chose it;
    `options`: settings of it."""
    data, port = folder / "data", port or free_port()
    keys = folder / "keys.json"
    keys.write_text(json.dumps({VICTIM_KEY: "victim", ATTACKER_KEY: "attacker"}))
    (folder / "stalls").touch()
    os.environ["CUBICLE_TEST_UPLOADS"] = str(data)
    settings = {"DRIVER": "memory", "POOL_SIZE": "0", "API_KEYS_FILE": str(keys), "EGRESS": "allowlist", **options}
    settings |= {"DATA_DIR": str(data), "PORT": str(port), "LOG_FORMAT": "json"}
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.monitored", str(folder / "stalls"), "serve"],
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    workers: list[Worker] = []
    try:
        control = await Worker.start("control")
        workers.append(control)
        await _up(process, port, folder)
        there = (await control.order("port"))["port"]
        victim = await Worker.start("victim", port=port, control=there, key=VICTIM_KEY, pid=process.pid)
        workers.append(victim)
        chat = Chat("attacker", "attacker")
        secret = kept_secret(data)
        links = Links(secret, "", KeyRing.parse("", keys.read_text(), pepper=secret))
        held = {
            "key": ATTACKER_KEY,
            "chat": chat.id,
            "link": links.key(chat, LinkAccess.CONTROL),
            "capability": links.capability(Grant(chat, Reach.PICTURES)),
        }
        attacker = await Worker.start("attacker", port=port, seconds=seconds, patience=patience, short=short, **held)
        workers.append(attacker)
        yield Ground(folder, process, victim, attacker)
    finally:
        for worker in workers:
            await worker.stop()
        process.terminate()
        await asyncio.to_thread(process.wait, 60)
        driver = MemoryDriver(data)
        for seen in await driver.list():
            await driver.delete(seen.name)


async def _up(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    ends = time.monotonic() + 60
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False, verify=False) as web:
        while True:
            assert process.poll() is None, (folder / "service.log").read_text()[-3000:]
            try:
                await web.get("/health")
                break
            except httpx.TransportError:
                assert time.monotonic() < ends, "the service does not come up"
                await asyncio.sleep(0.05)
        for key, chat in ((VICTIM_KEY, "victim"), (ATTACKER_KEY, "attacker")):
            head, _, body = bash("true", key, chat).partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[2:])
            answer = await web.post("/mcp", content=body, headers=headers)
            assert '"isError":false' in answer.text, answer.text
