"""`cubicle ps`, `stop` and `shell`: the sandboxes of this host, beside the service or without it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import click
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cubicle.cli.errors import exits, tell_audit
from cubicle.cli.output import megabytes, show, span
from cubicle.core.chat import DEFAULT_TENANT, BadChatId, Chat
from cubicle.core.text import one_line
from cubicle.drivers.factory import make_chat_index, make_driver
from cubicle.machine.errors import NotRunning, SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.process import Process
from cubicle.sandbox.chat_index import ChatRecord
from cubicle.sandbox.driver import Driver, SandboxSeen, State
from cubicle.sandbox.lost_found import LostFound
from cubicle.sandbox.trash import Discarded
from cubicle.sandbox.warm_pool import connect
from cubicle.settings import BadSettings, Settings, load, terminal_type

_COLOURS = {State.RUNNING: "green", State.STOPPED: "dim", State.FAILED: "red", State.STARTING: "yellow"}

_MAX_WAITING = 16
_MAX_REASON = 500
_ANSWER_SECONDS = 8.0

tenant_option = click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Whose chat it is.")


@dataclass(frozen=True)
class SandboxHost:
    """The sandboxes of one DATA_DIR, as a command of the command line sees them."""

    driver: Driver
    records: dict[str, ChatRecord]
    seen: Sequence[SandboxSeen]

    def find(self, chat: Chat) -> SandboxSeen:
        for seen in self.seen:
            if seen.owner == chat.digest:
                return seen
        raise NotRunning(f"The chat {chat.id} has no sandbox. `cubicle ps` lists those that there are.")


@asynccontextmanager
async def open_host(settings: Settings) -> AsyncIterator[SandboxHost]:
    driver, chat_index = make_driver(settings), make_chat_index(settings)
    await driver.open()
    try:
        await asyncio.to_thread(chat_index.open)
        yield SandboxHost(driver, await asyncio.to_thread(chat_index.read), await driver.list())
    finally:
        await driver.close()


def chat_named(text: str, tenant: str) -> Chat:
    try:
        return Chat(text, tenant)
    except BadChatId as error:
        raise BadSettings(str(error)) from None


@click.command()
@exits
def ps() -> None:
    """List the sandboxes of this DATA_DIR."""

    async def listed() -> None:
        settings = load()
        async with open_host(settings) as host:
            rows = [await _row(host, seen) for seen in sorted(host.seen, key=lambda seen: _order(host, seen))]
            if rows:
                show(_table(rows))
            else:
                click.echo(f"No sandboxes in DATA_DIR={settings.data_dir}.")
            for seen in host.seen:
                if seen.reason:
                    click.echo(f"{seen.name}: {one_line(seen.reason, _MAX_REASON)}")
            if trash := await host.driver.discarded():
                count = "1 removed sandbox" if len(trash) == 1 else f"{len(trash)} removed sandboxes"
                click.echo(f"In the trash: {count}, {disk_use(trash)}. `cubicle undelete` lists them.")
            if lost := await asyncio.to_thread(LostFound(settings.data_dir).entries):
                click.echo(f"Set aside because it could not be used: {len(lost)}. `cubicle rescue` lists it.")

    asyncio.run(listed())


def _order(host: SandboxHost, seen: SandboxSeen) -> tuple[bool, str, str]:
    """Chats by their names, then the pool."""
    record = host.records.get(seen.owner or "")
    return seen.owner is None, record.chat.id if record else "", seen.name


async def _row(host: SandboxHost, seen: SandboxSeen) -> list[str]:
    record = host.records.get(seen.owner or "")
    memory, processes = await _usage(host.driver, seen)
    return [
        escape(record.chat.id) if record else ("(pool)" if seen.owner is None else "?"),
        escape(record.chat.tenant) if record else "",
        f"[{_COLOURS[seen.state]}]{'frozen' if seen.frozen else seen.state.value}[/]",
        span(time.time() - record.since) if record and record.since is not None else "",
        span(time.time() - record.last_used) if record else "",
        memory,
        processes,
        seen.image[:12],
        seen.name,
    ]


def _table(rows: list[list[str]]) -> Table:
    """Only the last columns are cut short where it is narrow: the other commands want a chat's whole name."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, title in enumerate(
        ("CHAT", "TENANT", "STATE", "AGE", "IDLE", "MEMORY", "PROCESSES", "IMAGE", "SANDBOX")
    ):
        whole = max(len(title), *(cell_len(Text.from_markup(row[column]).plain) for row in rows)) if column < 7 else 1
        table.add_column(title, no_wrap=True, min_width=whole, justify="right" if 3 <= column < 7 else "left")
    for row in rows:
        table.add_row(*row)
    return table


async def _usage(driver: Driver, seen: SandboxSeen) -> tuple[str, str]:
    if seen.state is not State.RUNNING or seen.frozen:
        return "", ""  # one that is frozen is not woken to tell it
    try:
        machine = await connect(driver, seen.name, patience=_ANSWER_SECONDS)
        try:
            stats = await machine.stats()
        finally:
            machine.close()
    except SandboxError:
        return "?", "?"  # it ended since, or does not answer: the others are still to be told of
    memory = f"{stats.memory / 1024**2:.0f} MB" if stats.memory is not None else ""
    return memory, "" if stats.processes is None else str(stats.processes)


def disk_use(trash: Sequence[Discarded]) -> str:
    """How much space the trash takes, in words."""
    sizes = [each.note.size if each.note else None for each in trash]
    known = sum(size for size in sizes if size is not None)
    return f"{megabytes(known)} on disk" if None not in sizes else f"at least {megabytes(known)} on disk"


def check_choice(chat: str | None, everything: bool) -> None:
    if (chat is None) is not everything:
        raise BadSettings("Name one chat, or say --all.")


def _meant(host: SandboxHost, chat: str | None, tenant: str, everything: bool) -> Sequence[SandboxSeen]:
    """One chat's sandbox, or all that there are, the blank ones of the pool too."""
    check_choice(chat, everything)
    return host.seen if chat is None else [host.find(chat_named(chat, tenant))]


@click.command()
@click.argument("chat", required=False)
@click.option("--all", "everything", is_flag=True, help="Every sandbox of this DATA_DIR.")
@tenant_option
@exits
def stop(chat: str | None, everything: bool, tenant: str) -> None:
    """Stop the sandbox of CHAT; its files stay."""

    async def act() -> int:
        async with open_host(load()) as host:
            meant = _meant(host, chat, tenant, everything)
            for seen in meant:
                await host.driver.stop(seen.name)
            return len(meant)

    stopped = asyncio.run(act())
    click.echo(f"Stopped {chat or stopped}.")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("chat")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@tenant_option
@exits
def shell(chat: str, command: tuple[str, ...], tenant: str) -> None:
    """Open a shell in the sandbox of CHAT, or run COMMAND there; a stopped one is started."""
    argv = list(command[1:] if command[:1] == ("--",) else command) or ["/bin/bash", "-l"]

    async def act() -> int:
        async with open_host(load()) as host:
            key = chat_named(chat, tenant)
            seen = host.find(key)
            await host.driver.start(seen.name, key.digest)
            machine = await connect(host.driver, seen.name)
            tell_audit()  # before anything is done there: a shell may end in any way
            try:
                joined = _terminal if sys.stdin.isatty() and sys.stdout.isatty() else _piped
                return await joined(machine, argv)
            finally:
                machine.close()

    raise SystemExit(asyncio.run(act()))


async def _piped(machine: Machine, argv: list[str]) -> int:
    """A command in the sandbox between this program's input and output, whatever those are."""
    async with machine.run(argv, stdin=True) as process:
        # A thread that nobody waits for: what it reads from may never end.
        threading.Thread(target=_feed, args=(process, asyncio.get_running_loop()), daemon=True).start()
        async for _, chunk in process.output:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return (await process.wait()).status


def _feed(process: Process, loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError, SandboxError, concurrent.futures.CancelledError):  # the command has ended
        while chunk := os.read(sys.stdin.fileno(), 65536):
            asyncio.run_coroutine_threadsafe(process.write(chunk), loop).result()
        loop.call_soon_threadsafe(process.close_input)


async def _terminal(machine: Machine, argv: list[str]) -> int:
    """This terminal, joined to a command in the sandbox until it ends."""
    size = shutil.get_terminal_size()
    before = termios.tcgetattr(sys.stdin)
    async with machine.run(argv, pty=(size.columns, size.lines), env={"TERM": terminal_type()}) as process:
        tty.setraw(sys.stdin)
        try:
            async with asyncio.TaskGroup() as group:
                typing = group.create_task(_type(process))
                async for _, chunk in process.output:
                    os.write(sys.stdout.fileno(), chunk)
                typing.cancel()
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        return (await process.wait()).status


async def _type(process: Process) -> None:
    """Keys and size changes of this terminal, to the command."""
    loop = asyncio.get_running_loop()
    keys: asyncio.Queue[bytes | None] = asyncio.Queue()

    def read() -> None:
        keys.put_nowait(os.read(sys.stdin.fileno(), 4096))
        if keys.qsize() >= _MAX_WAITING:
            loop.remove_reader(sys.stdin)  # what is pasted faster than it is taken waits in the terminal

    loop.add_signal_handler(signal.SIGWINCH, lambda: keys.put_nowait(None))
    try:
        while True:
            if keys.qsize() < _MAX_WAITING:
                loop.add_reader(sys.stdin, read)
            pressed = await keys.get()
            if pressed is None:
                size = shutil.get_terminal_size()
                await process.resize(size.columns, size.lines)
            elif pressed:
                await process.write(pressed)
            else:
                return
    finally:
        loop.remove_reader(sys.stdin)
        loop.remove_signal_handler(signal.SIGWINCH)
