"""Files: read, write, edit, stat, list, remove."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from . import file_changes, operations, wire
from .atomic_write import TEMPORARY, AtomicWrite
from .connection import GuestConnection, OperationRefused
from .file_changes import Undo, Undone
from .file_once import OnceChannel
from .path_policy import FileChannel, open_regular
from .wire import ErrorCode

_MAX_EDITED = 64 * 1024 * 1024


class SendingChannel(FileChannel):
    """Sends an open file, or a part of it."""

    def __init__(self, link: GuestConnection, number: int) -> None:
        super().__init__(link, number)
        self._fd = -1
        self._left = 0
        self._sent = 0

    def send(self, path: str, offset: int, length: int | None) -> None:
        """Say what the open file is, then send this part of it."""
        found = os.fstat(self._fd)
        os.lseek(self._fd, offset, os.SEEK_SET)
        rest = max(0, found.st_size - offset)
        self._left = rest if length is None or length < 0 else min(length, rest)
        self.event(operations.FileOpened(stat=operations.FileStat.of(path, found), length=self._left))
        self.ready()

    def ready(self) -> None:
        while self._fd >= 0:
            room = min(self.may_send, self._left)
            if not room and self._left:
                return
            chunk = os.read(self._fd, room) if room else b""
            if not chunk:
                self._close()
                self.end(operations.FileSent(size=self._sent))
                return
            self._left -= len(chunk)
            self._sent += len(chunk)
            self.data(chunk)

    def on_cancel(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Read(SendingChannel):
    """Send a file, or a part of it; with `hand`, the open file itself is the answer."""

    REQUEST = operations.Read

    def begin(self, request: operations.Read) -> None:
        if request.kept is not None:
            path = self._open_kept(request, request.kept)
        else:
            path = self.policy.resolve(request)
            with self.policy.who(request):
                self._fd = open_regular(path)
            try:
                self.policy.confirm(request, self._fd)
            except OperationRefused:
                self._close()
                raise
        if request.hand:
            self._give_away(path)
        else:
            self.send(path, request.offset, request.length)

    def _open_kept(self, request: operations.Read, id: str) -> str:
        """Open the side of a change that is not in place; the path of the file that was changed."""
        kept = self.publisher.kept.find(id)
        named = operations.FileRequest(path=kept.path, roots=request.roots)
        if self.policy.resolve(named) != kept.path:
            raise OperationRefused(ErrorCode.CHANGED, "a part of its path is a link now")
        self._fd = open_regular(kept.content)
        return kept.path

    def _give_away(self, path: str) -> None:
        try:
            answer = operations.FileSent(path=path)
            self.link.hand(wire.frame(self.number, wire.END, answer.encode()), self._fd)
        finally:
            self._close()
        self.link.forget(self)


class Write(OnceChannel):
    """Put a whole file in place at once, when the last byte is there."""

    REQUEST = operations.Write

    def __init__(self, link: GuestConnection, number: int) -> None:
        super().__init__(link, number)
        self._draft: AtomicWrite | None = None
        self._size = 0
        self._path = ""
        self._request: operations.Write

    def begin(self, request: operations.Write) -> None:
        self._request = request
        path = self._path = self.policy.resolve(request)
        folder, name = os.path.split(path)
        if len(os.fsencode(name)) > 255:
            raise OperationRefused(ErrorCode.BAD_NAME, "a file name has at most 255 bytes")
        with self.policy.who(request):
            if os.path.isdir(path):
                raise OperationRefused(ErrorCode.IS_DIRECTORY, "it is a directory")
            try:
                os.makedirs(folder, exist_ok=True)
            except FileExistsError:
                raise OperationRefused(ErrorCode.NOT_DIRECTORY, "a part of the path is a file") from None
            self._draft = AtomicWrite(
                folder, name, lambda fd: self.policy.confirm(request, fd), self.publisher.kept.make_room
            )

    def on_data(self, stream: int, payload: memoryview) -> None:
        if self._draft is None:
            return
        try:
            self._draft.write(payload)
        except OSError:
            self.on_cancel()
            raise
        self._size += len(payload)
        self.give(len(payload))

    def on_eof(self, stream: int) -> None:
        if self._draft is None:
            return
        mode = self._request.mode
        if self._request.sync or self._request.id is not None:
            self.publisher.take_turn(self, self._path, lambda: self._publish(mode))
            return
        try:
            with self.policy.who(self._request):
                created = self._draft.publish(mode)
        except OSError:
            self.on_cancel()
            raise
        self._draft = None
        self._written(created)

    def _publish(self, mode: int) -> None:
        request = self._request
        if self.told_again(request, operations.Written, self._path):
            self.on_cancel()
            return
        draft, self._draft = self._draft, None
        if draft is None:
            return
        if request.expected is not None and file_changes.version_at(self._path) != request.expected:
            with self.policy.who(request):
                draft.discard()
            raise OperationRefused(ErrorCode.CHANGED, "the file has changed since")
        answer = self._answer(draft.settle(mode)[0], os.fstat(draft.descriptors[0]).st_ino)
        inode = answer.inode
        self.publish_once(request, self._path, draft, mode, answer, lambda new, told: self._written(new, told, inode))

    def _answer(self, created: bool, inode: int = 0) -> operations.Written:
        path = os.path.realpath(self._request.path)
        return operations.Written(created=created, size=self._size, path=path, inode=inode)

    def _written(self, created: bool, told: bytes = b"", inode: int = 0) -> None:
        self.tell_done(self._request, self._answer(created, inode), told)

    def on_cancel(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            with self.policy.who(self._request):
                draft.discard()


class Edit(OnceChannel):
    """Replace the one occurrence of a text."""

    REQUEST = operations.Edit

    def __init__(self, link: GuestConnection, number: int) -> None:
        super().__init__(link, number)
        self._request: operations.Edit
        self._texts = [bytearray(), bytearray()]
        self._ends = 0

    def begin(self, request: operations.Edit) -> None:
        self._request = request
        self.policy.resolve(request)

    def on_data(self, stream: int, payload: memoryview) -> None:
        if stream not in (0, 1) or sum(map(len, self._texts)) + len(payload) > _MAX_EDITED:
            raise OperationRefused(ErrorCode.TOO_BIG, "the texts are too long to edit with")
        self._texts[stream] += payload
        self.give(len(payload))

    def on_eof(self, stream: int) -> None:
        self._ends += 1
        if self._ends == 2:
            path = self.policy.resolve(self._request)
            self.publisher.take_turn(self, path, lambda: self._replace(path))

    def _replace(self, path: str) -> None:
        call_id = self._request.id
        if self.told_again(self._request, operations.Edited, path):
            return
        with self.policy.who(self._request):
            draft, edited = self._changed(path)
            if not self._request.sync and call_id is None:
                try:
                    draft.publish(0o644)
                except OSError:
                    draft.discard()
                    raise
                self.end(edited)
                return

        def done(created: bool, told: bytes) -> None:
            self.tell_done(self._request, edited, told)

        self.publish_once(self._request, path, draft, 0o644, edited, done)

    def _changed(self, path: str) -> tuple[AtomicWrite, operations.Edited]:
        """The file as it is to be, and what the host is told about it."""
        old, new = map(bytes, self._texts)
        source = open_regular(path)
        try:
            self.policy.confirm(self._request, source)
            size = os.fstat(source).st_size
            if size > _MAX_EDITED:
                raise OperationRefused(
                    ErrorCode.TOO_BIG, "the file has %d bytes; at most %d can be edited" % (size, _MAX_EDITED)
                )
            content = read_all(source)
        finally:
            os.close(source)
        places = _places(content, old)
        if not places:
            why = operations.FailureDetails(carriage_returns=b"\r\n" in content)
            raise OperationRefused(ErrorCode.NO_MATCH, "the text does not occur in the file", why)
        lines = [content.count(b"\n", 0, place) + 1 for place in places]
        if len(places) > 1:
            why = operations.FailureDetails(lines=lines)
            raise OperationRefused(ErrorCode.MANY_MATCHES, "the text occurs more than once", why)
        content = content[: places[0]] + new + content[places[0] + len(old) :]
        draft = AtomicWrite(*os.path.split(path), lambda fd: self.policy.confirm(self._request, fd))
        try:
            draft.write(content)
        except OSError:
            draft.discard()
            raise
        return draft, operations.Edited(path=path, line=lines[0], size=len(content))


def _places(content: bytes, old: bytes) -> list[int]:
    """Where the text begins, overlapping ones too; the first few are enough to say no."""
    places: list[int] = []
    at = content.find(old) if old else -1
    while at >= 0 and len(places) < 20:
        places.append(at)
        at = content.find(old, at + 1)
    return places


def read_all(fd: int) -> bytes:
    chunks: list[bytes] = []
    while True:
        chunk = os.read(fd, 1 << 20)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)


class StatChannel(FileChannel):
    """What is there under a name."""

    REQUEST = operations.Stat

    def begin(self, request: operations.Stat) -> None:
        path = self.policy.resolve(request, request.follow)
        with self.policy.who(request):
            self.end(operations.FileStat.of(path, os.stat(path, follow_symlinks=request.follow)))


class List(FileChannel):
    """A folder's entries, as lines of JSON, depth first, in the order of their names."""

    REQUEST = operations.List

    def __init__(self, link: GuestConnection, number: int) -> None:
        super().__init__(link, number)
        self._request: operations.List
        self._walk: Iterator[operations.Entry] = iter(())
        self._left = 0

    def begin(self, request: operations.List) -> None:
        self._request = request
        path = self.policy.resolve(request)
        with self.policy.who(request):
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise OperationRefused(ErrorCode.NOT_DIRECTORY, "it is not a directory")
            os.scandir(path).close()  # says it if the folder itself may not be read
        self._left = request.limit
        self._walk = walk(path, "", request.depth, request.hidden)
        self.ready()

    def ready(self) -> None:
        while not self.closed and self.may_send >= 32 * 1024:
            lines, more = self._batch()
            if lines:
                self.data(b"".join(lines))
            if not more:
                self.end(operations.Listed(complete=self._left > 0))

    def _batch(self) -> tuple[list[bytes], bool]:
        lines: list[bytes] = []
        size = 0
        with self.policy.who(self._request):
            while size < 16 * 1024:
                entry = next(self._walk, None)
                if entry is None:
                    return lines, False
                if self._left <= 0:
                    return lines, False
                self._left -= 1
                lines.append(entry.encode() + b"\n")
                size += len(lines[-1])
        return lines, True

    def on_cancel(self) -> None:
        self._walk = iter(())


def walk(base: str, prefix: str, depth: int, hidden: bool) -> Iterator[operations.Entry]:
    """Entries below base; what cannot be read is left out, links are never followed."""
    try:
        names = sorted(os.listdir(os.path.join(base, prefix)))
    except OSError:
        return
    for name in names:
        if name.startswith(TEMPORARY) or (name.startswith(".") and not hidden):
            continue
        path = os.path.join(prefix, name)
        full = os.path.join(base, path)
        try:
            entry = operations.Entry.of(path, os.lstat(full))
            if entry.kind == "symlink":
                entry = entry.replace(link=os.readlink(full))
        except OSError:
            continue
        yield entry
        if entry.kind == "directory" and depth > 1:
            yield from walk(base, path, depth - 1, hidden)


class Remove(FileChannel):
    """Remove a file or an empty folder, or with `recursive` a whole one."""

    REQUEST = operations.Remove

    def begin(self, request: operations.Remove) -> None:
        path = self.policy.resolve(request, follow=False)
        with self.policy.who(request):
            if not os.path.isdir(path) or os.path.islink(path):
                os.unlink(path)
            elif not request.recursive:
                os.rmdir(path)
            else:
                for folder, folders, names in os.walk(path, topdown=False):
                    for name in names:
                        os.unlink(os.path.join(folder, name))
                    for name in folders:
                        full = os.path.join(folder, name)
                        if os.path.islink(full):
                            os.unlink(full)
                        else:
                            os.rmdir(full)
                os.rmdir(path)
        self.end()


class UndoChannel(FileChannel):
    """Take back a change of a file, or make it again."""

    REQUEST = Undo

    def begin(self, request: Undo) -> None:
        kept = self.publisher.kept.find(request.id)
        named = operations.FileRequest(path=kept.path, roots=request.roots)
        if self.policy.resolve(named) != kept.path:
            raise OperationRefused(ErrorCode.CHANGED, "a part of its path is a link now")
        who = self.policy.who(named)

        def work() -> bytes:
            swapped = self.publisher.kept.swap(kept, request.redo, who, lambda fd: self.policy.confirm(named, fd))
            return swapped.encode()

        def finish(told: bytes | None) -> None:
            if told is not None:
                self.end(Undone.decode_line(told))

        self.publisher.take_turn(self, kept.path, lambda: self.publisher.run(self, kept.path, work, finish))


CHANNELS: list[type[FileChannel]] = [Read, Write, Edit, StatChannel, List, Remove, UndoChannel]
