"""Chats in a cluster: a new one from the pool, warm commands beside the embedded driver's, a wake.

scripts/with-kubernetes python -m bench.kubernetes [--chats 20] [--rounds 200] [--wakes 5]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bench.drivers import KINDS, sandbox
from bench.report import Report, percentile
from bench.workers import Chat as HttpChat
from cubicle.core.chat import Chat
from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.machine.machine import Machine
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from tests.drivers.kubernetes import cluster
from tests.support.replicas import replicas

POOL = 5
NEW_CHAT_MS, WARM_MS, HOP_MS, WAKE_MS = 150.0, 1.5, 3.0, 4000.0
"""The bars: a new chat to the end of its first command; a warm `true` above the embedded driver's, and what it takes
longer through another replica; a wake."""


async def timed(machine: Machine) -> float:
    began = time.perf_counter()
    await machine.output("true")
    return (time.perf_counter() - began) * 1000


async def new_chats(fleet: Fleet, driver: KubernetesDriver, count: int, report: Report) -> None:
    """Each when the pool is full again: what is measured is a claim, not the cluster's pace."""
    taken = []
    for number in range(count):
        await filled(driver)
        chat = Chat(f"new-{number}", "bench")
        began = time.perf_counter()
        async with fleet.lease(chat) as machine:
            await machine.output("true")
        taken.append((time.perf_counter() - began) * 1000)
        await fleet.remove(chat, now=True)
    p50 = percentile(taken, 0.5)
    report.row("new chat until its first command's end", taken, p50 <= NEW_CHAT_MS, f"(bar {NEW_CHAT_MS:g} ms)")


async def filled(driver: KubernetesDriver) -> None:
    async with asyncio.timeout(300):
        while driver._blank.count() < POOL:
            async with driver._blank._follower.changed:
                await driver._blank._follower.changed.wait()


async def warm(fleet: Fleet, folder: Path, rounds: int, report: Report) -> None:
    """Turn by turn with the embedded driver, so that whatever else the machine does meets both."""
    async with (
        fleet.lease(Chat("warm", "bench")) as pod,
        sandbox(KINDS["oci-runc"], folder / "oci", "slim") as (here, _),
    ):
        times: dict[str, list[float]] = {"here": [], "pod": []}
        for _ in range(rounds):
            times["here"].append(await timed(here))
            times["pod"].append(await timed(pod))
        more = percentile(times["pod"], 0.5) - percentile(times["here"], 0.5)
        report.row("warm bash -c true, embedded driver", times["here"])
        report.row("warm bash -c true, pod", times["pod"], more <= WARM_MS, f"{more:+.2f} ms (bar {WARM_MS:+g} ms)")


async def wakes(fleet: Fleet, count: int, report: Report) -> None:
    """From a stopped chat to the end of its first command."""
    chat, taken = Chat("wake", "bench"), []
    async with fleet.lease(chat) as machine:
        await machine.output("true")
    for _ in range(count):
        await fleet.stop(chat)
        began = time.perf_counter()
        async with fleet.lease(chat) as machine:
            await machine.output("true")
        taken.append((time.perf_counter() - began) * 1000)
    report.row("wake until the first command's end", taken, percentile(taken, 0.5) <= WAKE_MS, f"(bar {WAKE_MS:g} ms)")


async def hops(folder: Path, rounds: int, report: Report) -> None:
    """Over HTTP, turn by turn: through the replica that owns the chat, and through another."""
    async with replicas(folder, 2) as both:
        times: list[list[float]] = [[], []]
        await both[0].text("hop", "true")
        chats = [await one_chat(each.port) for each in both]
        for _ in range(rounds):
            for chat, taken in zip(chats, times, strict=True):
                taken.append(await chat.call())
        more = percentile(times[1], 0.5) - percentile(times[0], 0.5)
        report.row("warm bash_tool over HTTP, through the owner", times[0])
        note = f"{more:+.2f} ms (bar {HOP_MS:+g} ms)"
        report.row("warm bash_tool over HTTP, through another replica", times[1], more <= HOP_MS, note)
        for chat in chats:
            chat.close()


async def one_chat(port: int) -> HttpChat:
    loop, arguments = asyncio.get_running_loop(), {"command": "true", "description": "bench"}
    _, chat = await loop.create_connection(lambda: HttpChat("hop", "bash_tool", dict(arguments)), "127.0.0.1", port)
    await chat.call()
    return chat


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Fleet, KubernetesDriver]]:
    driver = cluster.make(folder, pool_size=POOL)()
    async with Fleet(driver, ChatIndex(folder / "index"), pool_size=POOL) as fleet:
        yield fleet, driver
        name = f"{driver._terms.instance}-blank"
        await driver._client.patch("deployments", name, {"spec": {"replicas": 0}})
        for seen in await driver.list():
            await driver.delete(seen.name)


async def measure(chats: int, rounds: int, wake: int, report: Report) -> None:
    folder = Path(tempfile.mkdtemp(prefix="cubicle-bench-"))
    try:
        async with serving(folder) as (fleet, driver):
            await filled(driver)
            await warm(fleet, folder, rounds, report)
            await wakes(fleet, wake, report)  # while no pod of another chat is being removed
            await new_chats(fleet, driver, chats, report)
        await hops(folder, rounds, report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--chats", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--wakes", type=int, default=5)
    chosen = parser.parse_args()
    report = Report("Chats in a cluster")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(chosen.chats, chosen.rounds, chosen.wakes, report))
    report.show()
    raise SystemExit(0 if report.good else 1)


if __name__ == "__main__":
    main()
