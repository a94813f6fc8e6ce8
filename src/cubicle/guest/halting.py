"""The end of a sandbox without waiting for whoever runs it: everything in it is over when the answer comes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from . import operations, process_table
from .commands import CommandTable
from .connection import GuestChannel, GuestConnection, OperationRefused
from .loop import Loop
from .wire import ErrorCode

_SECONDS = 10.0
_PAUSE = 0.01


def halt_channel(
    loop: Loop,
    serve_only: Callable[[str, type[GuestChannel]], None],
    links: list[GuestConnection],
    command_table: CommandTable,
) -> type[GuestChannel]:
    """The channel class of `halt`; nothing but this is served once it was asked for."""

    class HaltChannel(GuestChannel):
        REQUEST = operations.Halt

        def begin(self, request: operations.Halt) -> None:
            serve_only(operations.Halt.OP, HaltChannel)
            for link in [link for link in links if link is not self.link]:
                link.close()
            self._end_all(time.monotonic() + _SECONDS)

        def _end_all(self, deadline: float) -> None:
            """Whoever forks meanwhile is found in the next round."""
            left = [pid for pid in process_table.processes() if pid != os.getpid()]
            process_table.signal_all(left, signal.SIGKILL)
            command_table.reap()
            if not left:
                self.end()
            elif time.monotonic() > deadline:
                self.fail(OperationRefused(ErrorCode.BUSY, "a process does not end"))
            else:
                loop.later(_PAUSE, lambda: self._end_all(deadline))

    return HaltChannel
