"""A live sandbox that you can run things on: the guest's words as Python."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import socket
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any, TypeVar

from cubicle.guest import operations, wire
from cubicle.guest.file_changes import Undo, Undone
from cubicle.guest.operations import Edited, Entry, Exit, FileStat, Usage, Written
from cubicle.guest.wire import ErrorCode
from cubicle.machine import passed_file
from cubicle.machine.connection import CallerChannel, GuestLink
from cubicle.machine.dialled_socket import DialledSocket, connect_in
from cubicle.machine.errors import MachineError, NotRunning, SandboxError
from cubicle.machine.fd_passing import NotPassed
from cubicle.machine.file_versions import FileVersions
from cubicle.machine.files import FileReader, SentFile, parse_entry
from cubicle.machine.items import Data, End
from cubicle.machine.passed_file import FileThreads, PassedFile
from cubicle.machine.process import Process, look_for, process_of
from cubicle.machine.refusals import Refusals
from cubicle.machine.stream import Stream, StreamConnection
from cubicle.machine.text_pieces import encoded
from cubicle.machine.trace_context import trace_variables
from cubicle.machine.upload_folder import UploadFolder

HOME = "/home/assistant"
UPLOADS = "/mnt/user-data/uploads"
OUTPUTS = "/mnt/user-data/outputs"
SKILLS = "/mnt/skills"
WRITABLE_ROOTS = (HOME, "/mnt/user-data", "/tmp")  # noqa: S108 — a path of the sandbox
READABLE_ROOTS = (*WRITABLE_ROOTS, SKILLS)

log = logging.getLogger(__name__)

_HELLO_SECONDS = 20.0
_DIAL_SECONDS = 20.0
_ENTRIES_AT_A_TIME = 40
_T = TypeVar("_T")


class Machine:
    """Everything that can be done in one sandbox. All waits are limited; `Gone` when the sandbox is no more."""

    def __init__(
        self,
        name: str,
        line: GuestLink,
        uploads: UploadFolder | None = None,
        reach: Callable[[], Awaitable[socket.socket]] | None = None,
        network: Callable[[], Awaitable[int | None]] | None = None,
        *,
        fd_passing: bool = True,
    ) -> None:
        self.name = name
        self._line = line
        self._reach = reach
        self._network = network
        self._may_pass = fd_passing
        self._hands = False
        self.keeps = False
        """Whether its guest keeps what was done under an id; one of an earlier version does not."""
        self._file_threads = FileThreads()
        self.versions = FileVersions(line)
        self.uploads = uploads
        """Its uploads folder, where the driver has it on this host."""
        self.environment: dict[str, str] = {}
        """Variables of every command, besides those that it is given; sandbox_services add to them."""
        self.just_started = False
        """Whether its sandbox was started for this use. If not, it was up before, and so was what runs in it."""
        self.refusals = Refusals()
        self.stopped = ""
        """Why somebody stops it on purpose, from just before it goes; empty otherwise."""
        self.hung_up = False
        """Whether this side ended the connection. If not, the sandbox did, or something between."""

    @property
    def alive(self) -> bool:
        return not self._line.lost.done()

    def watch_round_trips(self, observe: Callable[[float], None]) -> None:
        """Call back with the seconds that each answer of the guest took."""
        self._line.on_round_trip = observe

    @property
    def offence(self) -> str:
        """Which rule its guest broke, if that is why the connection was closed."""
        return self._line.offence

    @property
    def given_up(self) -> bool:
        """Whether it was silent for so long that it can only be started anew."""
        return self._line.liveness.given_up

    async def gone(self) -> None:
        """Returns when the connection is lost."""
        await asyncio.shield(self._line.lost)

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Call back, once, when the connection is lost."""
        self._line.lost.add_done_callback(lambda lost: callback())

    def close(self) -> None:
        """Hang up; what runs in the sandbox goes on."""
        self.hung_up = self.hung_up or self.alive
        self._line.close()

    def condemn(self, offence: str) -> None:
        """Its guest broke a rule on another connection: this one ends as well, for the same reason."""
        self._line.offence = self._line.offence or offence
        self._line.close()

    async def reach(self) -> socket.socket:
        """A connection of its own to the same guest, for another process. Raises NotRunning."""
        if self._reach is None:
            raise NotRunning("There is no other way to this sandbox.")
        return await self._reach()

    async def resume(self) -> bool:
        """Let it run on if it was stopped by a signal or frozen; whether that was so."""
        resume = self._line.liveness.resume
        return resume is not None and await resume()

    async def hello(self, seconds: float = _HELLO_SECONDS) -> operations.Welcome:
        """Check that it is a guest of our kind that answers, and agree on the version of the wire."""
        ours = operations.Hello(oldest=wire.OLDEST_VERSION, newest=wire.NEWEST_VERSION)
        welcome = await self._line.ask(ours, limit=seconds)
        if not wire.OLDEST_VERSION <= welcome.version <= wire.NEWEST_VERSION:
            raise MachineError(ErrorCode.VERSION, "The sandbox runs another version of the guest.")
        self._hands = welcome.hands and self._may_pass
        self.keeps = welcome.keeps
        return welcome

    @asynccontextmanager
    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        pty: tuple[int, int] | None = None,
        merge: bool = True,
        stdin: bool = False,
        id: str | None = None,
        keep: bool = False,
        known: bool = False,
        unattended: float | None = None,
        stays: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[Process]:
        """Start a command; leaving the block before its end kills everything it started, unless it is detached, or
        unless `stays` says that it goes on although nobody knows yet that it was started.

        With `keep`, a command of this id runs once: after that it is followed, or told how it ended (MachineError
        `interrupted` if nobody can tell); with `known`, only that. `unattended`: seconds until nobody's is killed.
        """
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        if sum(map(len, (*argv, cwd or ""))) > wire.MAX_PAYLOAD:  # before any work on it
            raise _too_long()
        variables = {**self.environment, **trace_variables.get(), **(env or {})}
        request = operations.Run(
            argv=argv, cwd=cwd, env=variables, timeout=timeout, pty=pty, merge=merge, stdin=stdin, id=id
        )
        if keep or known or unattended is not None:
            request = request.replace(keep=keep, known=known, unattended=unattended)
        try:
            channel = self._line.open(request)
        except wire.WireError:
            raise _too_long() from None
        async with process_of(self._line, channel, stays) as process:
            yield process

    @asynccontextmanager
    async def attach(self, id: str) -> AsyncIterator[Process]:
        """Hear a command again after a lost connection: first the end of what it printed, then what comes."""
        async with process_of(self._line, self._line.open(operations.Attach(id=id))) as process:
            process.detach()
            yield process

    async def look_for(self, id: str) -> None:
        """MachineError `not-found` if nothing is known of this id. Who follows a command of it is not disturbed."""
        await look_for(self._line, id, keeps=self.keeps)

    async def output(self, command: str | Sequence[str], *, limit: int = 1 << 20, **options: Any) -> tuple[Exit, bytes]:
        """Run a short command to its end; what it printed, up to the limit."""
        kept = bytearray()
        async with self.run(command, **options) as process:
            async for _, chunk in process.output:
                kept += chunk[: max(0, limit - len(kept))]
            return await process.wait(), bytes(kept)

    @asynccontextmanager
    async def read(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        roots: Sequence[str] | None = None,
        straight: bool = False,
        kept: str | None = None,
    ) -> AsyncIterator[FileReader]:
        """Open a plain file; it is one version of it even if it is replaced meanwhile. `kept`: see `operations.Read`.

        With `straight`, the guest hands the open file over where it can: dearer to open, and cheaper to read.
        """
        request = operations.Read(path=path, offset=offset, length=length, roots=_list(roots), kept=kept)
        if straight and (file := await self._handed_file(request)) is not None:
            with closing(file):
                yield file
            return
        channel = self._line.open(request)
        try:
            opened = await channel.event()
            sent = opened.length if length is None else min(opened.length, length)
            yield SentFile(channel, opened.stat, sent)
        finally:
            channel.cancel()

    async def _handed_file(self, request: operations.Read) -> PassedFile | None:
        try:
            async with asyncio.timeout(_DIAL_SECONDS):
                receive = partial(passed_file.receive, line=self._line, threads=self._file_threads, request=request)
                return await self._handed(receive)
        except (MachineError, TimeoutError):
            return None  # the ordinary way says why

    async def read_bytes(self, path: str, *, limit: int, roots: Sequence[str] | None = None) -> bytes:
        """A whole file that is not larger than the limit."""
        async with self.read(path, roots=roots, length=limit + 1) as reader:
            if reader.stat.size > limit:
                raise MachineError(ErrorCode.TOO_BIG, f"The file has {reader.stat.size} bytes; the limit is {limit}.")
            content = b"".join([chunk async for chunk in reader])
        if len(content) > limit:
            raise MachineError(ErrorCode.TOO_BIG, f"The file has more than {limit} bytes.")
        return content

    async def write(
        self,
        path: str,
        content: bytes | str | AsyncIterable[bytes],
        *,
        mode: int = 0o644,
        as_root: bool = False,
        roots: Sequence[str] | None = None,
        sync: bool = False,
        id: str | None = None,
        keep: str = "",
        expected: str | None = None,
    ) -> Written:
        """Put a whole file in place at once; missing folders are made. Nothing appears if the content breaks off.

        With `sync`, it is on disk when this returns. Of a text, what is no character becomes `?`. Under one `id` it is
        written once, with the same answer again. `undo` takes it back by the id `keep`. `expected`: see the request.
        """
        request = operations.Write(
            path=path, mode=mode, as_root=as_root, roots=_list(roots), sync=sync, id=id, keep=keep
        )
        channel = self._line.open(request if expected is None else request.replace(expected=expected))
        try:
            if isinstance(content, bytes):
                await channel.send(content)
            elif isinstance(content, str):
                for piece in encoded(content, "replace"):
                    await channel.send(piece)
            else:
                async for chunk in content:
                    await channel.send(chunk)
            channel.eof()
            written = await channel.answer()
        finally:
            channel.cancel()
        return written if written.path else written.replace(path=path)

    async def edit(
        self,
        path: str,
        old: str,
        new: str,
        *,
        roots: Sequence[str] | None = None,
        id: str | None = None,
        keep: str = "",
    ) -> Edited:
        """Replace the one occurrence of a text, on disk; MachineError `no-match` or `many-matches` otherwise."""
        channel = self._line.open(operations.Edit(path=path, roots=_list(roots), sync=True, id=id, keep=keep))
        try:
            for stream, text in enumerate((old, new)):
                for piece in encoded(text, "surrogateescape"):
                    await channel.send(piece, stream)
                channel.eof(stream)
            edited = await channel.answer()
        finally:
            channel.cancel()
        return edited if edited.path else edited.replace(path=path)

    async def undo(self, id: str, *, redo: bool = False, roots: Sequence[str] | None = None) -> Undone:
        """Put back what a write or an edit replaced; MachineError `changed`, `not-kept` or `exists` otherwise."""
        return await self._line.ask(Undo(id=id, redo=redo, roots=_list(roots)))

    async def stat(self, path: str, *, follow: bool = True, roots: Sequence[str] | None = None) -> FileStat:
        return await self._line.ask(operations.Stat(path=path, follow=follow, roots=_list(roots)))

    async def list(
        self,
        path: str,
        *,
        depth: int = 1,
        hidden: bool = False,
        limit: int = 10_000,
        roots: Sequence[str] | None = None,
    ) -> AsyncIterator[Entry]:
        """Entries of a folder, folders before what is in them, in the order of their names; links are not followed."""
        channel = self._line.open(
            operations.List(path=path, depth=depth, hidden=hidden, limit=limit, roots=_list(roots))
        )
        rest = b""
        left = limit
        try:
            while True:
                item = await channel.get()
                if isinstance(item, End):
                    return
                if isinstance(item, Data):
                    *lines, rest = (rest + item.bytes).split(b"\n")
                    left -= len(lines)
                    if len(rest) > wire.MAX_PAYLOAD or left < 0:
                        raise MachineError(ErrorCode.IO, "The sandbox listed a folder in a way that makes no sense.")
                    for start in range(0, len(lines), _ENTRIES_AT_A_TIME):
                        for line in lines[start : start + _ENTRIES_AT_A_TIME]:
                            yield parse_entry(line)
                        await asyncio.sleep(0)  # a frame holds thousands: others want the loop, too
        finally:
            channel.cancel()

    async def remove(
        self, path: str, *, recursive: bool = False, as_root: bool = False, roots: Sequence[str] | None = None
    ) -> None:
        await self._line.ask(operations.Remove(path=path, recursive=recursive, as_root=as_root, roots=_list(roots)))

    async def dial(self, port: int, *, straight: bool = False) -> StreamConnection:
        """Connect to a port of the sandbox's loopback; MachineError `refused` when nobody listens.

        With `straight`, the service connects by itself where it can enter the sandbox's network: dearer to open, and
        half as dear to use.
        """
        try:
            async with asyncio.timeout(_DIAL_SECONDS):
                sock = await self._connect(port) if straight else None
                return DialledSocket(sock, self._line) if sock is not None else await self._dial(port)
        except TimeoutError:
            raise MachineError(ErrorCode.REFUSED, f"Port {port} of the sandbox does not answer.") from None

    async def _connect(self, port: int) -> socket.socket | None:
        namespace = await self._network() if self._network is not None else None
        return None if namespace is None else await connect_in(namespace, port)

    async def _dial(self, port: int) -> Stream:
        channel = self._line.open(operations.Dial(port=port))
        try:
            await channel.get()
        except BaseException:
            channel.cancel()
            raise
        return Stream(channel)

    async def _handed(self, receive: Callable[[socket.socket], Awaitable[_T]]) -> _T | None:
        """What the guest gives out of its own hands; None where it cannot be had."""
        if not self._hands or self._reach is None:
            return None
        try:
            with await self._reach() as link:
                return await receive(link)
        except NotPassed as error:
            log.warning("no descriptor comes out of a sandbox", extra={"sandbox": self.name, "why": str(error)})
            self._hands = False
        except NotRunning:
            pass  # the line itself says so
        return None

    @asynccontextmanager
    async def listen(
        self, port: int, handler: Callable[[Stream], Awaitable[None]], *, origin: bool = False, datagrams: bool = False
    ) -> AsyncIterator[int]:
        """Listen on a port of the sandbox's loopback and hand each caller to the handler; the block's end ends it.

        With `origin`, each stream says where its caller wanted to go before it was redirected here. With `datagrams`,
        each one that comes by UDP is a stream as well, with its length before it, and so is its answer.
        """
        channel = self._line.open(operations.Listen(port=port, origin=origin, datagrams=datagrams))
        tasks: set[asyncio.Task[None]] = set()
        context = contextvars.copy_context()  # callers come in whatever context reads the connection

        async def serve(stream: Stream) -> None:
            try:
                await handler(stream)
            except SandboxError:
                pass  # the caller, or the whole sandbox, went away
            except Exception:
                # Callers are the sandbox's: what one of them brings about ends that one, not the listening.
                log.exception("a caller from a sandbox could not be served", extra={"port": port})
            finally:
                stream.close()

        try:
            async with asyncio.TaskGroup() as group:

                def accept(caller: CallerChannel) -> None:
                    task = group.create_task(serve(Stream(caller)), context=context.copy())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)

                self._line.accept(channel, accept)
                first = await channel.event()
                try:
                    yield port if first.listening is None else first.listening
                finally:
                    channel.cancel()
                    for task in tasks:
                        task.cancel()
        finally:
            channel.cancel()

    async def ports(self) -> Sequence[operations.ListeningPort]:
        """What is listened on now. MachineError of a guest that cannot tell."""
        return (await self._line.ask(operations.Ports())).ports

    async def stats(self) -> Usage:
        """What the sandbox uses."""
        return await self._line.ask(operations.Stats())

    async def ping(self, limit: float = 15) -> None:
        await self._line.ask(operations.Ping(), limit=limit)


def _list(roots: Sequence[str] | None) -> list[str] | None:
    return None if roots is None else list(roots)


def _too_long() -> MachineError:
    return MachineError(ErrorCode.TOO_BIG, "The command is too long; write it to a file first, then run the file.")
