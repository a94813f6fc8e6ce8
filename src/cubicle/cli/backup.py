"""`cubicle export`, `import`, `backup` and `restore`: a chat, or everything, as one file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from cubicle.backup import MARKER, whole
from cubicle.backup.archive_file import ArchiveWriter, new_file, opened
from cubicle.backup.archive_names import BadArchive
from cubicle.backup.chats import KIND, CannotUnpack, ChatPlace, add_chat, import_chat, read_through
from cubicle.cli.errors import exits
from cubicle.cli.output import megabytes
from cubicle.cli.sandboxes import chat_named, tenant_option
from cubicle.core.text import one_line
from cubicle.drivers.factory import make_chat_index, make_driver
from cubicle.machine.errors import NotRunning, SandboxError
from cubicle.sandbox.service_lock import only_service_of
from cubicle.settings import BadSettings, Settings, load

_MIB = 1024**2
_MAX_TOLD = 5
_FILE = click.Path(dir_okay=False, path_type=Path)


@asynccontextmanager
async def _place(settings: Settings) -> AsyncIterator[ChatPlace]:
    driver, index = make_driver(settings), make_chat_index(settings)
    await driver.open()
    try:
        await asyncio.to_thread(index.open)
        yield ChatPlace(driver, index, settings.data_dir, settings.sandbox_disk_mb * _MIB)
    except (BadArchive, CannotUnpack) as error:
        raise SandboxError(one_line(str(error), 500)) from None
    finally:
        await driver.close()


def _tell(name: str) -> None:
    click.echo(f"{one_line(name, 200)} …")


def _tell_left_out(chat: str, lines: list[str]) -> None:
    """Who removes the chat now, or its host, is to know what the file does not have."""
    for line in lines[:_MAX_TOLD]:
        click.echo(f"LEFT OUT of {one_line(chat, 200)}: {one_line(line, 500)}", err=True)
    if len(lines) > _MAX_TOLD:
        click.echo(f"LEFT OUT of {one_line(chat, 200)}: {len(lines)} in all; left-out.txt has them.", err=True)


@click.command()
@click.argument("chat")
@click.argument("file", type=_FILE)
@tenant_option
@exits
def export(chat: str, file: Path, tenant: str) -> None:
    """Write CHAT to the new FILE: its files, its journal, and checksums of all of it. `cubicle import` reads it."""

    async def act() -> list[str]:
        async with _place(load()) as kept:
            key = chat_named(chat, tenant)
            seen = next((each for each in await kept.driver.list() if each.owner == key.digest), None)
            if seen is None:
                raise NotRunning(f"The chat {key.id} has no sandbox. `cubicle ps` lists those that there are.")
            known = (await asyncio.to_thread(kept.index.read)).get(key.digest)
            with new_file(file) as output:
                writer = await asyncio.to_thread(ArchiveWriter, output, KIND)
                with contextlib.closing(writer):
                    left_out = await add_chat(kept, seen, known, writer, journal=True)
                    await asyncio.to_thread(writer.finish)
                return left_out

    left_out = asyncio.run(act())
    click.echo(f"Wrote {chat} to {one_line(str(file), 500)} ({megabytes(file.stat().st_size)}).")
    _tell_left_out(chat, left_out)


@click.command("import")
@click.argument("file", type=_FILE)
@click.option("--as", "new", metavar="NEW", help="The name of the chat here, if it is to be another one.")
@click.option("--tenant", help="Whose chat it is to be here, if it is to be another's.")
@exits
def import_(file: Path, new: str | None, tenant: str | None) -> None:
    """Make a chat of FILE, which `cubicle export` wrote."""

    async def act() -> str:
        async with _place(load()) as kept:
            with opened(file) as source:
                chat = await import_chat(kept, source, new, tenant)
                return f"Imported {chat.id} of the tenant {one_line(chat.tenant, 100)}."

    click.echo(asyncio.run(act()))


@click.command()
@click.argument("file", type=_FILE)
@exits
def backup(file: Path) -> None:
    """Write everything to the new FILE: all chats with their files, journals, budgets, links and keys of DATA_DIR.

    The service may run meanwhile.
    """

    settings = load()
    if not settings.data_dir.is_dir() or not any(settings.data_dir.iterdir()):
        raise BadSettings(f"There is nothing in DATA_DIR={settings.data_dir}: is it the one of the service?")

    async def act() -> whole.Outcome:
        async with _place(settings) as kept:
            with new_file(file) as output:
                return await whole.backup(kept, output, _tell)

    outcome = asyncio.run(act())
    click.echo(f"Wrote {len(outcome.done)} chats to {one_line(str(file), 500)} ({megabytes(file.stat().st_size)}).")
    for name, left_out in outcome.without.items():
        _tell_left_out(name, left_out)
    for name, why in outcome.failed.items():
        click.echo(f"NOT WHOLE: {one_line(name, 200)}: {one_line(why, 500)}", err=True)
    if outcome.failed:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("file", type=_FILE)
@click.option(
    "--leave-out", metavar="CHAT", multiple=True, help="Finish without this chat if it cannot be restored. Repeatable."
)
@exits
def restore(file: Path, leave_out: tuple[str, ...]) -> None:
    """Bring back everything of FILE, which `cubicle backup` wrote, into an empty DATA_DIR.

    If it is cut off, run it again: it goes on where it was.
    """
    settings = load()

    async def act() -> whole.Outcome:
        with opened(file) as source:
            try:
                found = await asyncio.to_thread(read_through, source, settings.sandbox_disk_mb * _MIB)
            except BadArchive as error:
                raise SandboxError(one_line(str(error), 500)) from None
            with only_service_of(settings.data_dir, "restore"):
                whole.require_empty(settings.data_dir, found.id)
                async with _place(settings) as kept:
                    return await whole.restore(kept, source, found, _tell, leave_out)

    try:
        outcome = asyncio.run(act())
    except SandboxError as error:
        marker = settings.data_dir / MARKER
        raise BadSettings(f"{error} Run it again to go on." if marker.exists() else str(error)) from None
    there = f" {len(outcome.skipped)} were there already." if outcome.skipped else ""
    without = f" {len(outcome.left_out)} were left out." if outcome.left_out else ""
    click.echo(f"Restored {len(outcome.done)} chats.{there}{without}")
    for name, why in outcome.failed.items():
        click.echo(f"NOT RESTORED: {one_line(name, 200)}: {one_line(why, 500)}", err=True)
    if outcome.failed:
        raise BadSettings(
            "The restore is not finished, and no service starts on this DATA_DIR. Run it again to try these once more, "
            "or finish it without them: --leave-out CHAT."
        )
