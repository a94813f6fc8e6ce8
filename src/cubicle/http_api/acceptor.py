"""Takes new connections from the kernel, fairly between the addresses that they come from.

The kernel keeps new connections in one queue for all and drops what does not fit: whoever opens them faster than they
are served would keep everybody else out. So they are taken from there at once, which is cheap, and wait here for what
is not: each address apart, in the fair queue.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from cubicle.chat.key_attempts import network_of
from cubicle.fairness.fair_queue import STRANGERS, FairQueue, LoopShare, metered
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

MAX_WAITING_OF_ADDRESS = 2048
"""Behind a reverse proxy all clients have its address."""
MAX_WAITING = 8192
_AT_ONCE = 64
"""Connections taken in one turn of the event loop."""
_PAUSE_SECONDS = 0.2
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts on one listening socket, from the time it is made until `close`."""

    def __init__(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol], queue: FairQueue) -> None:
        self._listening, self._protocol, self._queue = listening, protocol, queue
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, dict[socket.socket, None]] = {}
        """Those that wait for their turn, by network, the oldest first."""
        self._count = 0
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Take no more, and let go of those that wait."""
        self._closed = True
        self._loop.remove_reader(self._listening)
        if self._pause is not None:
            self._pause.cancel()
        for network in list(self._waiting):
            while network in self._waiting:
                self._drop_newest(network)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept_some)

    def _accept_some(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                client, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno == errno.EINVAL:  # nobody listens any more
                    self._loop.remove_reader(self._listening)
                    return
                if error.errno in _SHORT_OF:  # the kernel keeps it, and would say so again at once
                    log.warning("no new connections for a moment: %s", error.strerror)
                    self._loop.remove_reader(self._listening)
                    self._pause = self._loop.call_later(_PAUSE_SECONDS, self._resume)
                    return
                continue  # the client was gone already
            self._wait(client, network_of(address[0]) if address else "")

    def _wait(self, client: socket.socket, network: str) -> None:
        own = len(self._waiting.get(network, ()))
        if own >= MAX_WAITING_OF_ADDRESS or (own and self._count >= MAX_WAITING):
            client.close()
            return
        if self._count >= MAX_WAITING:  # whoever has the most makes room
            self._drop_newest(max(self._waiting, key=lambda each: len(self._waiting[each])))
        self._waiting.setdefault(network, {})[client] = None
        self._count += 1
        share = LoopShare(STRANGERS, network)
        self._queue.run(share, lambda: self._begin(client, share))

    def _drop_newest(self, network: str) -> None:
        client = next(reversed(self._waiting[network]))
        self._forget(client, network)
        client.close()

    def _forget(self, client: socket.socket, network: str) -> bool:
        """It waits no longer; whether it did."""
        waiting = self._waiting.get(network, {})
        if client not in waiting:
            return False
        del waiting[client]
        self._count -= 1
        if not waiting:
            del self._waiting[network]
        return True

    def _begin(self, client: socket.socket, share: LoopShare) -> None:
        if not self._forget(client, share.chat):
            return
        task = start_task(self._connect(client, share), name="new connection")
        self._tasks[task] = client
        task.add_done_callback(self._end)

    async def _connect(self, client: socket.socket, share: LoopShare) -> None:
        """Never cancelled: a transport that is cut off as it begins does not tell its protocol that it ended."""
        client.setblocking(False)
        connecting = self._loop.connect_accepted_socket(self._protocol, client)
        transport, protocol = await metered(connecting, self._queue, share, begun=True)
        if self._closed:
            getattr(protocol, "shutdown", transport.close)()

    def _end(self, task: asyncio.Task[None]) -> None:
        client = self._tasks.pop(task)
        if task.cancelled() or task.exception() is not None:  # the client was gone already
            client.close()
