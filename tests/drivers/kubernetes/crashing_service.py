"""A service that is killed as by kill -9 right after one of its writes to the cluster.

Its words are MAKE VERB OWNER SANDBOX WRITE. MAKE is a pickled maker of drivers, in hex. It ends with 0 where the verb has fewer writes.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from cubicle.core.chat import Chat
from cubicle.drivers.kubernetes import template
from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.drivers.kubernetes.objects import APP, DELETING, INSTANCE, PodSeen, Record
from cubicle.machine.errors import StartFailed
from cubicle.sandbox.trash import TrashNote
from cubicle.sandbox.warm_pool import connect

NOTE = TrashNote(Chat("chat", "somebody"), "removed by hand", 0.0)
Step = Callable[[KubernetesDriver, str, str], Awaitable[object]]


async def nothing(driver: KubernetesDriver, owner: str, name: str) -> None:
    await blank(driver)


async def blank(driver: KubernetesDriver) -> None:
    async with asyncio.timeout(120):
        while not driver._blank.count():
            async with driver._blank._follower.changed:
                await driver._blank._follower.changed.wait()


async def start(driver: KubernetesDriver, owner: str, name: str) -> None:
    """The chat has a sandbox with a file in it."""
    await driver.start(name, owner)
    machine = await connect(driver, name)
    await machine.output("echo kept > ~/kept; sync ~/kept")
    machine.close()


async def start_in_vain(driver: KubernetesDriver, owner: str, name: str) -> None:
    """The node cannot run the pod, say."""

    async def come_up(*_: object) -> PodSeen:
        raise StartFailed("The sandbox did not come up.")

    setattr(driver._pods, "come_up", come_up)  # noqa: B010
    with suppress(StartFailed):
        await driver.start(name, owner)


async def start_and_stop(driver: KubernetesDriver, owner: str, name: str) -> None:
    await start(driver, owner, name)
    await driver.stop(name)


async def start_and_discard(driver: KubernetesDriver, owner: str, name: str) -> None:
    await start(driver, owner, name)
    await driver.discard(name, NOTE)


async def start_and_delete(driver: KubernetesDriver, owner: str, name: str) -> None:
    await start(driver, owner, name)
    await driver.delete(name)
    async with asyncio.timeout(120):
        while await driver._removal._has_pods(name):
            await asyncio.sleep(0.1)


async def mess(driver: KubernetesDriver, owner: str, name: str) -> None:
    """Something of each kind that crashes leave."""
    await blank(driver)
    pod = driver._blank.choose()
    assert pod is not None
    assert await driver._blank.take(pod, Record("chat", pod.name, owner))
    await blank(driver)
    other = driver._blank.choose()
    assert other is not None
    for number in range(2):
        await driver._records.create(Record("chat", other.name, f"{number:031x}f", pod=other.name))
    await driver._records.create(Record("chat", name, "f" * 32, pod=name, step=DELETING))
    await driver._records.create(Record("removed", f"{name}-gone"))
    driver._records.holder = "the one after"
    labels = {APP: template.PROGRAMS_APP, INSTANCE: driver._terms.instance}
    old = {"name": f"{driver._terms.instance}-guest-old", "labels": labels}
    await driver._client.create("configmaps", {"metadata": old, "data": {}})


VERBS: dict[str, tuple[Step, Step]] = {
    "claim": (nothing, lambda driver, owner, name: driver.take_blank(owner)),
    "start": (nothing, lambda driver, owner, name: driver.start(name, owner)),
    "start in vain": (nothing, start_in_vain),
    "wake": (start_and_stop, lambda driver, owner, name: driver.start(name, owner)),
    "stop": (start, lambda driver, owner, name: driver.stop(name)),
    "delete": (start, lambda driver, owner, name: driver.delete(name)),
    "remove files": (start_and_delete, lambda driver, owner, name: driver._removal.remove_now()),
    "discard": (start, lambda driver, owner, name: driver.discard(name, NOTE)),
    "sweep": (mess, lambda driver, owner, name: driver.sweeper.sweep(-1e9)),
    "restore": (start_and_discard, lambda driver, owner, name: driver.restore(name, owner)),
}
"""What comes before, and what is interrupted."""


def kill_after(writes: int) -> None:
    """Count from now on."""
    true_once = KubernetesClient._once
    left = writes

    async def once(self: KubernetesClient, method: str, *more: Any) -> Any:
        nonlocal left
        try:
            return await true_once(self, method, *more)
        finally:
            left -= method != "GET"
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(KubernetesClient, "_once", once)  # noqa: B010


async def run(make: Callable[[], KubernetesDriver], verb: str, owner: str, name: str, write: int) -> None:
    driver = make()
    await driver.open()
    await driver._removal.close()  # its turn comes by itself
    prepare, act = VERBS[verb]
    await prepare(driver, owner, name)
    kill_after(write)
    await act(driver, owner, name)
    os._exit(0)


def main() -> None:
    made, verb, owner, name, write = sys.argv[1:]
    asyncio.run(run(pickle.loads(bytes.fromhex(made)), verb, owner, name, int(write)))
