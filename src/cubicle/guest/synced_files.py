"""Files that are on disk before the host hears that they were written.

A disk may take long for that, and the guest has one thread: so a child process does it. Changes of one file take turns
meanwhile, so that an edit sees the one before it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from . import operations
from .atomic_write import AtomicWrite
from .connection import GuestChannel, OperationRefused, refusal
from .file_changes import FileChange
from .identity import As
from .kept_files import KeptFiles
from .loop import READ, Loop
from .messages import BadMessage

Turn = Callable[[], None]
_DONE = b"\0"
_MAX_ANSWER = 1024 * 1024


class Publisher:
    """Puts drafts in place, for all channels of the guest."""

    def __init__(self, loop: Loop, kept: KeptFiles) -> None:
        self._loop = loop
        self.kept = kept
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
        done: Callable[[bool, bytes], None],
        keeping: Keeping | None = None,
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Put the draft on disk under its name; then call back with whether it is new there and what is told of the
        change, or call `failed` and fail the channel."""
        created, mode = draft.settle(mode)

        def work() -> bytes:
            told = keeping.keep(draft, who) if keeping is not None else b""
            try:
                with who:
                    draft.publish_on_disk(mode)
            except OSError:
                if keeping is not None:
                    keeping.forget()
                raise
            return told

        def finish(told: bytes | None) -> None:
            if told is not None:
                draft.close()
                done(created, told)
                return
            if failed is not None:
                failed()
            with who:
                draft.discard()

        self.run(channel, path, work, finish, draft.descriptors)

    def run(
        self,
        channel: GuestChannel,
        path: str,
        work: Callable[[], bytes],
        finish: Callable[[bytes | None], None],
        descriptors: tuple[int, ...] = (),
    ) -> None:
        """Do the work in a child, which has these descriptors; call back with what it made, or with None and fail the
        channel. Others who want this path wait."""
        out, into = os.pipe()
        try:
            pid = os.fork()
        except OSError:  # as many processes as there may be: then the others wait
            os.close(out)
            os.close(into)
            try:
                told = work()
            except (OSError, OperationRefused):
                finish(None)
                raise
            finish(told)
            return
        if pid == 0:
            _child(work, into, descriptors)
        os.close(into)
        self._busy.setdefault(path, [])
        answer = bytearray()

        def told_more(events: int) -> None:
            chunk = os.read(out, 65536)
            answer.extend(chunk)
            if chunk and len(answer) <= _MAX_ANSWER:
                return
            self._loop.unwatch(out)
            os.close(out)
            self._finish(channel, path, bytes(answer), finish)

        self._loop.watch(out, READ, told_more)

    def _finish(self, channel: GuestChannel, path: str, answer: bytes, finish: Callable[[bytes | None], None]) -> None:
        if answer[:1] == _DONE:
            _call(channel, lambda: finish(answer[1:]), even_if_closed=True)
        else:
            _call(channel, lambda: finish(None), even_if_closed=True)
            channel.fail(_read_refusal(answer))
        for other, turn in self._busy.pop(path, []):
            if not other.closed:
                self._again(other, path, turn)

    def _again(self, channel: GuestChannel, path: str, turn: Turn) -> None:
        self._loop.soon(lambda: _call(channel, lambda: self.take_turn(channel, path, turn)))


def _call(channel: GuestChannel, turn: Turn, even_if_closed: bool = False) -> None:
    """As the link does when a frame comes: what is refused is told to the host."""
    if channel.closed and not even_if_closed:
        return
    try:
        turn()
    except OperationRefused as no:
        channel.fail(no)
    except OSError as error:
        channel.fail(refusal(error))


def _child(work: Callable[[], bytes], into: int, descriptors: tuple[int, ...]) -> None:
    """In the child: does the work, says how it went, and ends without a word more."""
    answer = b""
    try:
        _close_all_but(*descriptors, into)
        answer = _DONE + work()
    except OperationRefused as no:
        answer = _encode_refusal(no)
    except OSError as error:
        answer = _encode_refusal(refusal(error))
    finally:
        try:
            while answer:
                answer = answer[os.write(into, answer) :]
        finally:
            os._exit(0)


def _encode_refusal(no: OperationRefused) -> bytes:
    return operations.Failure(error=no.code, message=str(no), details=no.details).encode()


def _read_refusal(answer: bytes) -> OperationRefused:
    """Why the child could not do it; one that ended without a word was killed."""
    try:
        failure = operations.Failure.decode_line(answer)
    except BadMessage:
        return refusal(OSError(errno.EIO, os.strerror(errno.EIO)))
    return OperationRefused(failure.error, failure.message, failure.details)


def _close_all_but(*kept: int) -> None:
    """The child holds nothing open that others wait for the end of."""
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


class Keeping:
    """How a change is kept while it is made: under which id, and of which path."""

    def __init__(self, files: KeptFiles, id: str, path: str) -> None:
        self._files = files
        self._id = id
        self._path = path

    def keep(self, draft: AtomicWrite, who: As) -> bytes:
        """What the host is told of the change. That it cannot be kept does not stop it."""
        new, folder = draft.descriptors
        try:
            change = self._files.keep(self._id, self._path, folder, draft.name, new, who)
        except OSError as error:
            self.forget()
            change = FileChange(reason="it could not be kept: %s" % (error.strerror or error))
        return change.encode()

    def forget(self) -> None:
        self._files.forget(self._id)
