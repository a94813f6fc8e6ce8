"""The terminal server of a sandbox: ttyd on a port of its loopback, with one tmux session that everybody shares.

A connection to ttyd is one tmux client; the tmux server is its own daemon. So closing a page, or ttyd's end, takes
nothing away from what runs in the terminal.
"""

from __future__ import annotations

import asyncio
import shlex
from weakref import WeakKeyDictionary

from cubicle.core import sandbox_ports
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine

PORT = sandbox_ports.TERMINAL
SUBPROTOCOL = "tty"
SESSION = "main"
LOG = "/home/assistant/.cache/cubicle/ttyd.log"

_START_LIMIT = 15.0
_OPTIONS = (
    "-g history-limit 50000",
    "-sg escape-time 10",
    "-g status off",
    "-g mouse on",
    "-g set-clipboard on",
    "-g focus-events on",
    "-g window-size latest",
    "-g default-terminal tmux-256color",
)
_TMUX = " ; ".join(("tmux -u start-server", *(f"set {option}" for option in _OPTIONS), f"new-session -A -s {SESSION}"))
_TTYD = "ttyd --port {port} --interface 127.0.0.1 --writable --ping-interval 30 --cwd /home/assistant"
_SCRIPT = """
command -v ttyd >/dev/null && command -v tmux >/dev/null || exit 127
mkdir -p {folder} || exit 1
setsid {ttyd} {tmux} </dev/null >{log} 2>&1 &
"""


class TerminalUnavailable(SandboxError):
    """The terminal server cannot run in this sandbox; the message says why."""


def command(port: int = PORT) -> str:
    """The shell command that starts the terminal server and returns at once."""
    return _SCRIPT.format(
        folder=shlex.quote(LOG.rpartition("/")[0]),
        ttyd=_TTYD.format(port=port),
        tmux=" ".join(shlex.quote(word) for word in _TMUX.split()),
        log=shlex.quote(LOG),
    )


def is_output(message: bytes) -> bool:
    """Whether a message of ttyd is something to show: then its tmux client is attached, and ends when it is told to."""
    return message[:1] == b"0"


def is_harmless(message: bytes) -> bool:
    """Whether a message to ttyd only lets its sender see: the first one (JSON), pause and go on; no key, no size."""
    return message[:1] == b"{" or message in (b"2", b"3")


async def is_running(machine: Machine, port: int = PORT) -> bool:
    """Whether the terminal server accepts connections."""
    try:
        stream = await machine.dial(port)
    except MachineError:
        return False
    stream.close()
    return True


class Terminals:
    """Starts terminal servers, one start at a time for each machine."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[Machine, asyncio.Lock] = WeakKeyDictionary()

    async def start(self, machine: Machine) -> bool:
        """Have the terminal server running; True if this call started it. It accepts connections on return."""
        async with self._locks.setdefault(machine, asyncio.Lock()):
            if await is_running(machine):
                return False
            ended, _ = await machine.output(command(), timeout=_START_LIMIT)
            if ended.status == 127:
                raise TerminalUnavailable(
                    "This sandbox's image has no terminal server (ttyd and tmux): its operator can build it again."
                )
            if ended.status != 0:
                raise TerminalUnavailable("The terminal server could not be started: is the sandbox's disk full?")
            await self._accepting(machine)
            return True

    async def _accepting(self, machine: Machine) -> None:
        pause = 0.005
        try:
            async with asyncio.timeout(_START_LIMIT):
                while not await is_running(machine):
                    await asyncio.sleep(pause)
                    pause = min(0.1, pause * 1.5)
        except TimeoutError:
            raise TerminalUnavailable(
                f"The terminal server did not answer. What it said: {await _said(machine)}"
            ) from None


async def _said(machine: Machine) -> str:
    try:
        text = await machine.read_bytes(LOG, limit=64 * 1024)
    except MachineError:
        return "nothing"
    return text.decode("utf-8", "replace").strip()[-300:] or "nothing"
