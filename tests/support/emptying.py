"""Sandboxes outlive a driver by design: a test that made some removes them, whatever became of the test."""

from __future__ import annotations

import asyncio

from cubicle.machine.errors import SandboxError
from cubicle.sandbox.driver import Driver


async def empty(driver: Driver) -> None:
    """Remove every sandbox of a driver that is not open yet, or not any more: of a service that was killed, say."""
    await driver.open()
    await leave(driver)


async def leave(driver: Driver) -> None:
    """Remove every sandbox, those in the trash too, and close; one that cannot be removed does not keep the others, and is told at the end."""
    failed: list[Exception] = []
    few = asyncio.Semaphore(4)

    async def delete(name: str) -> None:
        async with few:
            try:
                await driver.delete(name)
            except (SandboxError, OSError) as error:
                failed.append(error)

    names = [seen.name for seen in (*await driver.list(), *await driver.discarded())]  # type: ignore[attr-defined]
    await asyncio.gather(*map(delete, names))
    await driver.close()
    if failed:
        raise ExceptionGroup("sandboxes that could not be removed", failed)
