"""A process that serves: its signals, its event loop, its memory, and the socket that it listens on."""

from __future__ import annotations

import asyncio
import errno
import gc
import resource
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

from cubicle import heap
from cubicle.fairness.fair_queue import task_factory
from cubicle.settings import BadSettings, Settings

_OPEN_FILES = 65_536
_SWITCH_SECONDS = 0.0005
"""The event loop waits so long for the interpreter's lock while a thread works; a call needs it a hundred times."""


def prepare_process() -> None:
    # A script's background job begins with interrupts ignored, and the first process of a container ignores SIGTERM
    # unless it asks for it; as an interrupt, that also closes what is open.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    _allow_many_files()
    heap.keep_small()


def run(serving: Coroutine[Any, Any, None]) -> None:
    """Until it ends, in an event loop as the service needs it. Garbage waits for settle_garbage: imports make next to
    none, and looking for it takes a tenth of the start."""
    gc.disable()
    sys.setswitchinterval(_SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_task_factory(task_factory)
        runner.run(serving)


def _allow_many_files() -> None:
    """A shell allows 1,024 unless asked for more, and an upload that comes slowly keeps four of them open."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, min(most, _OPEN_FILES)), most))


def settle_garbage() -> None:
    """Half a million objects stay for good once everything is imported: looking at them again and again stalls the
    loop for a tenth of a second. Looking once would find a thousand among them, and take as long."""
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    gc.enable()


def listen(settings: Settings, *, shared: bool = False) -> socket.socket:
    """Bind before anything is started, so that a taken port is said at once. `shared`: with the other workers."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        fixed = "PORT to another one" if error.errno == errno.EADDRINUSE else "HOST to an address of this machine"
        raise BadSettings(f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}. Set {fixed}.") from None
    listening.listen(4096)
    listening.setblocking(False)
    return listening


def place_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"
