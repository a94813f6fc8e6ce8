"""Ports for services that are to start."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A port for a service that is to start: none of those that connections take by themselves, so it stays free.

    Linux takes those from 32768 on, gVisor from 16000 on.
    """
    while True:
        port = random.randrange(10_000, 16_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
