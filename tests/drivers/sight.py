"""What the host sees of a sandbox's processes."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import Driver


async def in_gvisor(machine: Machine) -> bool:
    """Whether the sandbox's kernel is gVisor's: it tells its own boot messages."""
    _, output = await machine.output("dmesg 2>/dev/null | grep -c gVisor")
    return output.strip() not in (b"", b"0")


def host_processes(word: str) -> list[int]:
    """The processes of the host that have this word among their arguments."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(int(pid))
    return found


async def seen_on_host(word: str, seconds: float = 60) -> bool:
    """Whether a process of the host has this word before the time is over: what was asked for may not have begun yet."""
    deadline = time.monotonic() + seconds
    while not (found := host_processes(word)) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return bool(found)


async def gone_from_host(word: str, seconds: float) -> bool:
    """Whether no process of the host has this word any more before the time is over."""
    deadline = time.monotonic() + seconds
    while (found := host_processes(word)) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return not found


async def guest_sign(driver: Driver, name: str) -> str:
    """The word by which the runtime's own processes for a sandbox are known."""
    container = getattr(driver, "container_id", None)
    return str(await container(name)) if container else name


async def guest_on_host(driver: Driver, machine: Machine) -> int:
    """The guest's pid as the host sees it: the first process of its pid namespace, or the one that plays its kernel."""
    if await in_gvisor(machine):
        sign = await guest_sign(driver, machine.name)
        for pid in host_processes(sign):
            if b"boot" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        raise AssertionError("no such sandbox")
    _, namespace = await machine.output("readlink /proc/self/ns/pid")
    return within(namespace.decode().strip())[0]


def within(namespace: str) -> list[int]:
    """The processes of a pid namespace, in its own order: numbers of the host begin anew and again, so theirs says nothing."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                status = Path(f"/proc/{pid}/status").read_text()
                found[int(re.findall(r"^NSpid:.*\t(\d+)$", status, re.M)[0])] = int(pid)
        except (OSError, IndexError):
            continue
    assert 1 in found, "no such guest"
    return [found[number] for number in sorted(found)]
