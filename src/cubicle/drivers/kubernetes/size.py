"""How much a sandbox has on disk, as its own guest counts it."""

from __future__ import annotations

import asyncio

from cubicle.drivers.kubernetes.objects import PodSeen
from cubicle.drivers.kubernetes.pods import Pods
from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine

_SECONDS = 15.0
_COUNT = "du -scB1 /home/assistant /mnt/user-data/outputs /mnt/user-data/uploads /tmp /var/tmp 2>/dev/null | tail -n 1"


async def measured(pods: Pods, pod: PodSeen, epoch: int) -> int | None:
    """Bytes on disk, if the guest tells in time."""
    try:
        async with asyncio.timeout(_SECONDS):
            link = await GuestLink.over(await pods.connect(pod, epoch))
            machine = Machine(pod.sandbox, link, None, None, None, fd_passing=False)
            try:
                _, output = await machine.output(_COUNT, timeout=_SECONDS)
            finally:
                machine.close()
        return int(output.split()[0])
    except (OSError, SandboxError, ValueError, IndexError):
        return None
