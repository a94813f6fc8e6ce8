"""Puts the journals of many chats on disk at once: a file system makes one commit of what is asked for together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

log = logging.getLogger(__name__)

THREADS = 8


class SyncThreads:
    """Threads that are made when they are first needed. They do not keep the process up: a disk may never answer."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Callable[[], None], SimpleQueue[None]] | None] = SimpleQueue()
        self._started = False

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Do all of them, in no order, and wait for their end. What one raises is logged."""
        if not self._started:
            self._started = True
            for number in range(THREADS):
                threading.Thread(target=self._work, name=f"journal-sync-{number}", daemon=True).start()
        done: SimpleQueue[None] = SimpleQueue()
        for job in jobs:
            self._waiting.put((job, done))
        for _ in jobs:
            done.get()

    def stop(self) -> None:
        for _ in range(THREADS if self._started else 0):
            self._waiting.put(None)

    def _work(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            job, done = waiting
            try:
                job()
            except Exception:
                log.exception("a journal could not be put on disk")
            finally:
                done.put(None)
