"""A selector loop with timers: everything in the guest happens in its one thread."""

from __future__ import annotations

import errno
import heapq
import select
import time
from collections.abc import Callable

READ = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
WRITE = select.EPOLLOUT
_FEW_TIMERS = 256


class Timer:
    """One callback at one time, unless it is cancelled first."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Loop:
    """Calls back when a descriptor is ready or a time has come."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._timers: list[Timer] = []
        self._full = _FEW_TIMERS
        self._soon: list[Callable[[], None]] = []
        self.stopped = False

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call back with the events of this descriptor; a second call replaces the first."""
        old = self._watched.get(fd)
        self._watched[fd] = (events, callback)
        if old is None:
            self._epoll.register(fd, events)
        elif old[0] != events:
            self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor; it must still be open."""
        if self._watched.pop(fd, None) is not None:
            try:
                self._epoll.unregister(fd)
            except OSError as error:
                if error.errno not in (errno.EBADF, errno.ENOENT):
                    raise

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, timer)
        if len(self._timers) >= self._full:
            self._drop_cancelled()
        return timer

    def _drop_cancelled(self) -> None:
        """A command leaves its cancelled time limit behind, which may be hours away: only those that count are kept."""
        self._timers = [timer for timer in self._timers if timer.callback is not None]
        heapq.heapify(self._timers)
        self._full = max(_FEW_TIMERS, 2 * len(self._timers))

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next round, after what is ready now."""
        self._soon.append(callback)

    def run(self) -> None:
        while not self.stopped:
            self.turn()

    def turn(self) -> None:
        """One round: wait for something, then call everybody whose turn it is.

        What fails in a way that nobody foresaw is told in the log and ends there: with process 1, all would end.
        """
        for fd, events in self._epoll.poll(self._patience()):
            watched = self._watched.get(fd)
            if watched is not None:
                try:
                    watched[1](events)
                except Exception:  # noqa: BLE001
                    tell()
                    self.unwatch(fd)  # it would fail again at once
        soon, self._soon = self._soon, []
        for callback in soon:
            _call(callback)
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            due = heapq.heappop(self._timers).callback
            if due is not None:
                _call(due)

    def _patience(self) -> float:
        if self._soon:
            return 0
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return -1
        return max(0.0, self._timers[0].when - time.monotonic())


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001
        tell()


def tell() -> None:
    """The exception that is being handled, for whoever reads the guest's log."""
    import traceback  # it is seldom needed, and the guest stays small

    traceback.print_exc()
