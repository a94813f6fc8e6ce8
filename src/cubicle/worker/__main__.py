"""The spawner: imports what a worker needs, once, and forks a worker whenever the service asks for one.

It is started by `spawner.py` with the number of its end of a socket: a request is one packet with two descriptors, the
worker's end of its control channel and its setup. It answers with the worker's process id, and says when one ended.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress

from cubicle.worker.serving import serve

_PR_SET_PDEATHSIG = 1
_FAREWELL_SECONDS = 5.0
_OOM_SCORE = "500"
"""The kernel ends the worker before the service when memory runs out."""


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    service = int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != service:
        return  # it ended before that was set
    # A terminal and a service manager send these to all processes. It is the service that decides when we end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _name("cubicle-spawner")
    gc.collect()
    gc.freeze()
    service_handle = os.pidfd_open(service)
    channel.setblocking(True)
    with suppress(BrokenPipeError, ConnectionResetError):
        channel.send(b'{"op":"ready"}')
        _spawn(channel, service_handle)


def _spawn(channel: socket.socket, service_handle: int) -> None:
    """Fork and reap until the service hangs up."""
    children: dict[int, int] = {}  # by the descriptor that tells when it ended
    while True:
        waiting = select.poll()
        for descriptor in (channel.fileno(), *children):
            waiting.register(descriptor, select.POLLIN)
        for descriptor, _ in waiting.poll():
            if descriptor != channel.fileno():
                _, status = os.waitpid(children[descriptor], 0)
                ended = {"op": "ended", "pid": children.pop(descriptor), "status": os.waitstatus_to_exitcode(status)}
                os.close(descriptor)
                channel.send(json.dumps(ended).encode())
                continue
            packet, descriptors, _, _ = socket.recv_fds(channel, 1024, 2)
            if not packet:
                return
            pid = os.fork()
            if pid == 0:
                for inherited in (channel.fileno(), *children):
                    os.close(inherited)
                _work(service_handle, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            children[os.pidfd_open(pid)] = pid
            channel.send(json.dumps({"op": "forked", "pid": pid}).encode())


def _work(service_handle: int, control: int, setup: int) -> None:
    """Be a worker. Does not return."""
    status = 1
    try:
        _name("cubicle-worker")
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write(_OOM_SCORE)
        threading.Thread(target=_end_with, args=(service_handle,), name="service watch", daemon=True).start()
        serve(socket.socket(fileno=control), setup)
        status = 0
    except BaseException:  # noqa: BLE001 — the top of the process
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _end_with(service_handle: int) -> None:
    """End this process if the service is gone and the event loop does not see to it."""
    gone = select.poll()
    gone.register(service_handle, select.POLLIN)
    gone.poll()
    threading.Event().wait(_FAREWELL_SECONDS)
    os._exit(1)


def _name(text: str) -> None:
    """How tools such as `ps` and `top` show this process."""
    with suppress(OSError), open("/proc/self/comm", "w") as name:
        name.write(text)


if __name__ == "__main__":
    main()
