"""`cubicle ps`, `stop`, `rm` and `shell`: the sandboxes of this host, beside the service or without it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table

from cubicle.app import make_driver, make_ledger
from cubicle.cli.failures import exits
from cubicle.rules.chats import DEFAULT_TENANT, BadChatId, Chat
from cubicle.sandbox.driver import Driver, NotRunning, Seen, State
from cubicle.sandbox.ledger import Record
from cubicle.sandbox.machine import Machine, Process
from cubicle.sandbox.pool import connect
from cubicle.settings import BadSettings, Settings, load

_COLOURS = {State.RUNNING: "green", State.STOPPED: "dim", State.FAILED: "red", State.STARTING: "yellow"}

_tenant = click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Whose chat it is.")


@dataclass(frozen=True)
class Host:
    """The sandboxes of one DATA_DIR, as a command of the command line sees them."""

    driver: Driver
    records: dict[str, Record]
    seen: list[Seen]

    def find(self, chat: Chat) -> Seen:
        for seen in self.seen:
            if seen.owner == chat.digest:
                return seen
        raise NotRunning(f"The chat {chat.id} has no sandbox. `cubicle ps` lists those that there are.")


@asynccontextmanager
async def _host(settings: Settings) -> AsyncIterator[Host]:
    driver, ledger = make_driver(settings), make_ledger(settings)
    await driver.open()
    try:
        await asyncio.to_thread(ledger.open)
        yield Host(driver, await asyncio.to_thread(ledger.read), await driver.running())
    finally:
        await driver.close()


def _chat(text: str, tenant: str) -> Chat:
    try:
        return Chat(text, tenant)
    except BadChatId as error:
        raise BadSettings(str(error)) from None


@click.command()
@exits
def ps() -> None:
    """List the sandboxes of this host."""

    async def show() -> None:
        async with _host(load()) as host:
            table = Table(box=None, header_style="bold", pad_edge=False)
            for column in ("CHAT", "TENANT", "STATE", "IDLE", "MEMORY", "PROCESSES", "IMAGE", "SANDBOX"):
                table.add_column(column, justify="right" if column in ("IDLE", "MEMORY", "PROCESSES") else "left")
            for seen in sorted(host.seen, key=lambda s: (s.owner is None, s.name)):
                record = host.records.get(seen.owner or "")
                memory, processes = await _usage(host.driver, seen)
                table.add_row(
                    record.chat.id if record else ("(pool)" if seen.owner is None else "?"),
                    record.chat.tenant if record else "",
                    f"[{_COLOURS[seen.state]}]{seen.state.value}[/]" + (f" {seen.reason}" if seen.reason else ""),
                    _span(time.time() - record.last_used) if record else "",
                    memory,
                    processes,
                    seen.image[:12],
                    seen.name,
                )
            Console().print(table if host.seen else "No sandboxes.")

    asyncio.run(show())


async def _usage(driver: Driver, seen: Seen) -> tuple[str, str]:
    if seen.state is not State.RUNNING:
        return "", ""
    machine = await connect(driver, seen.name)
    try:
        stats = await machine.stats()
    finally:
        machine.close()
    memory = stats.get("memory")
    return f"{memory / 1024**2:.0f} MB" if isinstance(memory, int) else "", str(stats.get("processes", ""))


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


@click.command()
@click.argument("chat")
@_tenant
@exits
def stop(chat: str, tenant: str) -> None:
    """Stop the sandbox of CHAT; its files stay."""

    async def act() -> None:
        async with _host(load()) as host:
            await host.driver.stop(host.find(_chat(chat, tenant)).name)

    asyncio.run(act())
    click.echo(f"Stopped {chat}.")


@click.command()
@click.argument("chat")
@_tenant
@exits
def rm(chat: str, tenant: str) -> None:
    """Remove the sandbox of CHAT with everything in it."""

    async def act() -> None:
        settings = load()
        async with _host(settings) as host:
            key = _chat(chat, tenant)
            await host.driver.delete(host.find(key).name)
            make_ledger(settings).remove(key.digest)

    asyncio.run(act())
    click.echo(f"Removed {chat}.")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("chat")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@_tenant
@exits
def shell(chat: str, command: tuple[str, ...], tenant: str) -> None:
    """Open a shell in the sandbox of CHAT, or run COMMAND there; a stopped one is started."""

    async def act() -> int:
        async with _host(load()) as host:
            key = _chat(chat, tenant)
            seen = host.find(key)
            await host.driver.start(seen.name, key.digest)
            machine = await connect(host.driver, seen.name)
            try:
                return await _terminal(machine, list(command) or ["/bin/bash", "-l"])
            finally:
                machine.close()

    raise SystemExit(asyncio.run(act()))


async def _terminal(machine: Machine, argv: list[str]) -> int:
    """This terminal, joined to a command in the sandbox until it ends."""
    if not sys.stdin.isatty():
        async with machine.run(argv) as process:
            async for _, chunk in process.output:
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
            return (await process.wait()).status
    size = shutil.get_terminal_size()
    before = termios.tcgetattr(sys.stdin)
    async with machine.run(argv, pty=(size.columns, size.lines)) as process:
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
    keys: asyncio.Queue[bytes | None] = asyncio.Queue(64)
    loop.add_reader(sys.stdin, lambda: keys.put_nowait(os.read(sys.stdin.fileno(), 4096)))
    loop.add_signal_handler(signal.SIGWINCH, lambda: keys.put_nowait(None))
    try:
        while True:
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
