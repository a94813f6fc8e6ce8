"""Waiting for the end of a process."""

from __future__ import annotations

import asyncio
import os
import select

import pytest

from cubicle.drivers.oci.process import ended


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_that_comes_with_the_end_is_not_lost(turns):
    """Whichever comes first by so many turns of the loop: who is cancelled before the answer does not go on."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    pidfd = os.pidfd_open(pid)
    try:
        task = asyncio.create_task(ended(pidfd, 10))
        await asyncio.sleep(0)
        assert select.select([pidfd], [], [], 10)[0]
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert await task
    finally:
        os.close(pidfd)
        os.waitpid(pid, 0)


async def test_a_process_that_goes_on_is_not_waited_for_longer_than_said():
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    pidfd = os.pidfd_open(pid)
    try:
        assert not await ended(pidfd, 0.05)
    finally:
        os.kill(pid, 9)
        os.close(pidfd)
        os.waitpid(pid, 0)
