"""Files that are on disk before the host hears that they were written.

A disk may take long for that, and the guest has one thread: so a child process waits for it. Changes of one file take
turns meanwhile, so that an edit sees the one before it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from .atomic_write import AtomicWrite
from .connection import GuestChannel, OperationRefused, refusal
from .identity import As
from .loop import READ, Loop

Turn = Callable[[], None]


class Publisher:
    """Puts drafts in place, for all channels of the guest."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._busy: dict[str, list[tuple[GuestChannel, Turn]]] = {}

    def take_turn(self, channel: GuestChannel, path: str, turn: Turn) -> None:
        """Call back now, or once the file that is being put on disk under this path is there."""
        waiting = self._busy.get(path)
        if waiting is None:
            turn()
        else:
            waiting.append((channel, turn))

    def publish(
        self,
        channel: GuestChannel,
        path: str,
        draft: AtomicWrite,
        mode: int,
        who: As,
        done: Callable[[bool], None],
        note: Turn,
    ) -> None:
        """Put the draft on disk under its name; then call back with whether it is new there, or fail the channel.

        `note` is called before that, also when nobody waits for the answer any more.
        """
        created, mode = draft.settle(mode)
        out, into = os.pipe()
        try:
            pid = os.fork()
        except OSError:  # as many processes as there may be: then the others wait
            os.close(out)
            os.close(into)
            with who:
                draft.publish_on_disk(mode)
            draft.close()
            note()
            done(created)
            return
        if pid == 0:
            _child(draft, mode, who, into)
        os.close(into)
        self._busy.setdefault(path, [])

        def told(events: int) -> None:
            answer = os.read(out, 1)
            self._loop.unwatch(out)
            os.close(out)
            code = answer[0] if answer else errno.EIO
            self._finish(channel, path, draft, who, code, note, lambda: done(created))

        self._loop.watch(out, READ, told)

    def _finish(
        self, channel: GuestChannel, path: str, draft: AtomicWrite, who: As, code: int, note: Turn, done: Turn
    ) -> None:
        if code:
            with who:
                draft.discard()
            channel.fail(refusal(OSError(code, os.strerror(code))))
        else:
            draft.close()
            note()
            _call(channel, done)
        for other, turn in self._busy.pop(path, []):
            if not other.closed:
                self._again(other, path, turn)

    def _again(self, channel: GuestChannel, path: str, turn: Turn) -> None:
        self._loop.soon(lambda: _call(channel, lambda: self.take_turn(channel, path, turn)))


def _call(channel: GuestChannel, turn: Turn) -> None:
    """As the link does when a frame comes: what is refused is told to the host."""
    if channel.closed:
        return
    try:
        turn()
    except OperationRefused as no:
        channel.fail(no)
    except OSError as error:
        channel.fail(refusal(error))


def _child(draft: AtomicWrite, mode: int, who: As, into: int) -> None:
    """In the child: does the work, says how it went, and ends without a word more."""
    code = errno.EIO
    try:
        _close_all_but(*draft.descriptors, into)
        with who:
            draft.publish_on_disk(mode)
        code = 0
    except OSError as error:
        code = error.errno or errno.EIO
    finally:
        try:
            os.write(into, bytes([code & 255]))
        finally:
            os._exit(0)


def _close_all_but(*kept: int) -> None:
    """The child holds nothing open that others wait for the end of."""
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
