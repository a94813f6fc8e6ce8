"""A bridge from standard input and output to the guest's socket, for an engine that offers a host nothing but those.

It says one byte, `+`, when it has reached the guest; all that follows are the guest's own bytes.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

_CHUNK = 256 * 1024
_PAUSE = 0.01


def relay(path: str, seconds: float) -> None:
    """Runs until one side ends; then the process ends."""
    sock = _reach(path, seconds)
    os.write(1, b"+")
    threading.Thread(target=_outward, args=(sock,), daemon=True).start()
    try:
        while True:
            chunk = os.read(0, _CHUNK)
            if not chunk:
                break
            sock.sendall(chunk)
    except OSError:
        pass
    os._exit(0)


def _reach(path: str, seconds: float) -> socket.socket:
    """The guest may still be starting."""
    deadline = time.monotonic() + seconds
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(path)
        except OSError:
            sock.close()
            if time.monotonic() > deadline:
                sys.exit(1)
            time.sleep(_PAUSE)
        else:
            return sock


def _outward(sock: socket.socket) -> None:
    try:
        while True:
            chunk = sock.recv(_CHUNK)
            if not chunk:
                break
            view = memoryview(chunk)
            while view:
                view = view[os.write(1, view) :]
    except OSError:
        pass
    os._exit(0)
