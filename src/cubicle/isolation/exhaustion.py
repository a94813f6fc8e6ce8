"""One sandbox takes all it can of what the kernel shares out, while a neighbour and the host still need some.

Each row of the table is a program that takes one more of something and keeps it. A hog runs it until the kernel
refuses; then a neighbour, and this process's host, take the few that ordinary programs need.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass

from cubicle.isolation.probe import PRELUDE
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine

_HOG_SECONDS = 120
_SECONDS = 180.0
CLOSED = frozenset({"ENOSYS", "EPERM"})
"""Answers of a call that nobody in a sandbox may make at all."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that the kernel gives out to all, up to a limit."""

    name: str
    take: str
    """Statements that define `take(number)`: it takes one more and keeps it, or raises OSError if there is none."""
    need: int
    """How many a neighbour must still get."""
    most: int
    """Where the hog ends if nobody stops it."""


@dataclass(frozen=True, slots=True)
class ExhaustionOutcome:
    """What became of one of them."""

    resource: str
    hog: str
    """What the hog said last, and how many it took."""
    neighbour: str
    host: str = ""
    """As the neighbour; empty if the host could not be asked."""

    @property
    def problem(self) -> str:
        """Who went short; empty if nobody did."""
        short = [f"{who}: {said}" for who, said in (("a neighbour", self.neighbour), ("the host", self.host)) if said]
        return "; ".join(one for one in short if not one.endswith(": OK"))


RESOURCES = (
    Resource(
        "inotify instances",
        "def take(number):\n"
        "    fd = libc.inotify_init1(0)\n"
        "    if fd < 0: raise OSError(ctypes.get_errno(), 'inotify')\n",
        4,
        20_000,
    ),
    Resource(
        "inotify watches",
        "folder = tempfile.mkdtemp()\n"
        "names = [os.fsencode(os.path.join(folder, str(n))) for n in range(2000)]\n"
        "for name in names: open(name, 'w').close()\n"
        "def take(number):\n"
        "    global instance\n"
        "    if number % 2000 == 0: instance = libc.inotify_init1(0)\n"
        "    if instance < 0 or libc.inotify_add_watch(instance, names[number % 2000], 2) < 0:\n"
        "        raise OSError(ctypes.get_errno(), 'watch')\n",
        100,
        200_000,
    ),
    Resource(
        "timers and pending signals",
        "def take(number):\n"
        "    code = call('timer_create', 1, 0, buffer)\n"
        "    if code != 'DONE': raise OSError(getattr(errno, code), 'timer')\n",
        20,
        200_000,
    ),
    Resource(
        "message queues",
        "import struct\n"
        "def take(number):\n"
        "    name = f'cubicle{os.getpid()}n{number}'.encode()\n"
        "    sizes = ctypes.create_string_buffer(struct.pack('8l', 0, 10, 4096, 0, 0, 0, 0, 0))\n"
        "    code = call('mq_open', name, os.O_CREAT | os.O_RDWR, 0o600, sizes)\n"
        "    call('mq_unlink', name)\n"
        "    if code != 'DONE': raise OSError(getattr(errno, code), 'queue')\n",
        2,
        10_000,
    ),
    Resource("terminals", "def take(number): os.openpty()\n", 2, 9_000),
    Resource(
        "descriptors in flight",
        "import array\n"
        "sent = array.array('i', [1] * 200)\n"
        "def take(number):\n"
        "    ours, theirs = socket.socketpair()\n"
        "    held.append((ours, theirs))\n"
        "    ours.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])\n",
        2,
        2_000,
    ),
    Resource(
        "asynchronous I/O",
        "def take(number):\n"
        "    code = call('io_setup', 1000, ctypes.create_string_buffer(8))\n"
        "    if code != 'DONE': raise OSError(getattr(errno, code), 'io_setup')\n",
        1,
        2_000,
    ),
    Resource(
        "pipe buffers",
        "import fcntl\ndef take(number):\n    held.append(os.pipe())\n    fcntl.fcntl(held[-1][1], 1031, 1 << 20)\n",
        4,
        5_000,
    ),
    Resource(
        "locked memory",
        "import mmap\n"
        "def take(number):\n"
        "    held.append(mmap.mmap(-1, 65536))\n"
        "    where = ctypes.addressof(ctypes.c_char.from_buffer(held[-1]))\n"
        "    if libc.mlock(ctypes.c_void_p(where), 65536): raise OSError(ctypes.get_errno(), 'mlock')\n",
        2,
        20_000,
    ),
    Resource("open files", "def take(number): held.append(os.open('/dev/null', os.O_RDONLY))\n", 200, 1_100_000),
    Resource(
        "TCP buffers",
        "server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen(1000)\n"
        "block = bytes(1 << 20)\n"
        "def take(number):\n"
        "    client = socket.create_connection(server.getsockname(), 20)\n"
        "    held.append((client, server.accept()))\n"
        "    client.setblocking(False)\n"
        "    try:\n"
        "        total = 0\n"
        "        while total < 32 << 20: total += client.send(block)\n"
        "    except BlockingIOError: pass\n"
        "    if total < 65536: raise OSError(errno.ENOBUFS, 'no buffers')\n",
        2,
        500,
    ),
)

_TAKE = """
import tempfile, time
held = []
{take}
def taken(most):
    for number in range(most):
        try: take(number)
        except OSError as error: return word(error.errno), number
    return "OK", most
"""
# The first process tells; the second one keeps what it took until it is ended, or for two minutes.
_HOG = """
import signal
reader, writer = os.pipe()
pid = os.fork()
if not pid:
    os.setsid()
    signal.alarm({seconds})
    os.close(reader)
    said, count = taken({most})
    os.write(writer, f"{{said}} {{count}}".encode())
    os.close(writer)
    null = os.open("/dev/null", os.O_RDWR) if said != "EMFILE" else 0
    for fd in (0, 1, 2): os.dup2(null, fd)
    while True: signal.pause()
os.close(writer)
print(pid, os.read(reader, 100).decode() or "DIED 0", flush=True)
"""
_NEED = """
said, count = taken({need})
print(said, flush=True)
"""


async def exhausted(resource: Resource, hog: Machine, neighbour: Machine, *, here: bool) -> ExhaustionOutcome:
    """Have one sandbox take all it can of a resource, and see what is left; `here` says that this is their host."""
    pid, said = await _begin(resource, hog)
    try:
        left = await _needed(resource, neighbour)
        host = await asyncio.to_thread(_needed_here, resource) if here else ""
    finally:
        if pid:
            await _answer(hog, ["sh", "-c", f"kill -9 {pid}"])
    return ExhaustionOutcome(resource.name, said, left, host)


async def _begin(resource: Resource, machine: Machine) -> tuple[int, str]:
    program = _source(resource) + _HOG.format(most=resource.most, seconds=_HOG_SECONDS)
    words = (await _answer(machine, ["python3", "-I", "-c", program])).split()
    pid = int(words[0]) if words and words[0].isdigit() else 0
    return pid, " ".join(words[1:] if pid else words)


async def _needed(resource: Resource, machine: Machine) -> str:
    """OK, also where nobody in a sandbox may have any."""
    said = await _answer(machine, ["python3", "-I", "-c", _source(resource) + _NEED.format(need=resource.need)])
    return "OK" if said in CLOSED else said


def _needed_here(resource: Resource) -> str:
    program = _source(resource) + _NEED.format(need=resource.need)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"UNTRIED {type(error).__name__}"
    return (done.stdout.strip().splitlines() or ["SILENT"])[-1]


def _source(resource: Resource) -> str:
    return PRELUDE + _TAKE.format(take=resource.take)


async def _answer(machine: Machine, argv: list[str]) -> str:
    try:
        _, output = await machine.output(argv, timeout=_SECONDS)
    except SandboxError as error:
        return f"UNTRIED {error}"
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "SILENT"
