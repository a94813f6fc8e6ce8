"""`cubicle rm` and `undelete`: remove a chat's sandbox to the trash, and bring it back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import click
from rich.markup import escape
from rich.table import Table

from cubicle.cli.errors import exits
from cubicle.cli.output import megabytes, show, span
from cubicle.cli.sandboxes import SandboxHost, chat_named, check_choice, disk_use, open_host, tenant_option
from cubicle.core.chat import Chat
from cubicle.core.text import one_line
from cubicle.drivers.factory import make_chat_index
from cubicle.machine.errors import NotRunning, OwnerHasSandbox, SandboxError
from cubicle.removal import note_removal, remove_journal, remove_records
from cubicle.sandbox.driver import SandboxSeen
from cubicle.sandbox.lifecycle import BY_HAND
from cubicle.sandbox.trash import Discarded, TrashNote
from cubicle.settings import Settings, load

_MAX_REASON = 100


@click.command()
@click.argument("chat", required=False)
@click.option("--all", "everything", is_flag=True, help="Every sandbox of this DATA_DIR, with all files of all chats.")
@click.option("--now", is_flag=True, help="Delete for good, also what is in the trash of CHAT (with --all, of all).")
@tenant_option
@exits
def rm(chat: str | None, everything: bool, now: bool, tenant: str) -> None:
    """Remove the sandbox of CHAT with everything in it.

    It goes to the trash, from where `cubicle undelete` brings it back for TRASH_DAYS.
    """
    settings = load()
    now = now or not settings.trash_days

    async def act() -> tuple[int, int]:
        check_choice(chat, everything)
        async with open_host(settings) as host:
            wanted = None if chat is None else chat_named(chat, tenant)
            meant = [seen for seen in host.seen if wanted is None or seen.owner == wanted.digest]
            trash = await host.driver.discarded() if now else []
            purged = [each for each in trash if wanted is None or _was_of(each, wanted)]
            if wanted is not None and not meant and not purged:
                host.find(wanted)  # raises, and says so
            for seen in meant:
                await _remove(settings, host, seen, now)
            purged = [each for each in purged if await host.driver.purge(each.name)]
            gone = {seen.owner for seen in meant} | {each.owner for each in purged} if now else set()
            for owner in gone - {None}:
                await asyncio.to_thread(remove_journal, settings.data_dir, str(owner))
            return len(meant), len(purged)

    removed, purged = asyncio.run(act())
    click.echo(_told(chat, removed, purged, settings.trash_days, now))


async def _remove(settings: Settings, host: SandboxHost, seen: SandboxSeen, now: bool) -> None:
    index = make_chat_index(settings)
    if seen.owner is None:  # a service may have given it to a chat since it was listed
        if await host.driver.delete_blank(seen.name):
            return  # if it is in the trash by now, with what somebody did in it, it stays there
        found = next((each for each in await host.driver.list() if each.name == seen.name), None)
        if found is None or found.owner is None:
            return
        seen = found
    if now:
        await host.driver.delete(seen.name)
    elif seen.owner is not None:
        chat = await asyncio.to_thread(index.chat_of, seen.owner)
        await host.driver.discard(seen.name, TrashNote(chat, BY_HAND, time.time()))
        limit = int(settings.journal_mb * 2**20)
        try:
            await asyncio.to_thread(note_removal, settings.data_dir, limit, seen.owner, seen.name, BY_HAND)
        except OSError as error:
            click.echo(f"The journal of the chat does not say that it was removed: {error.strerror}.", err=True)
    if seen.owner is not None:
        await asyncio.to_thread(index.remove, seen.owner)
        await asyncio.to_thread(remove_records, settings.data_dir, seen.owner)


def _told(chat: str | None, removed: int, purged: int, days: float, now: bool) -> str:
    what = chat or f"{removed} sandbox{'es' * (removed != 1)}"
    if now:
        more = f" and {purged} from the trash" if purged and removed else " from the trash" if purged else ""
        return f"Deleted {what}{more} for good."
    which, back = chat or "CHAT", "brings it back" if chat else "brings one back"
    free = f"cubicle rm --now {chat or '--all'}"
    return f"Removed {what}. For {days:g} days `cubicle undelete {which}` {back}; `{free}` frees the space at once."


@click.command()
@click.argument("chat", required=False)
@click.option("--as", "new", metavar="NEW", help="Give it to the chat NEW: the old one may have a new sandbox.")
@tenant_option
@exits
def undelete(chat: str | None, new: str | None, tenant: str) -> None:
    """Bring back the removed sandbox of CHAT with its files; without CHAT, list what is in the trash.

    CHAT is a chat, whose latest removed sandbox is meant, or the name of a sandbox as the list shows it.
    """

    async def act() -> str:
        settings = load()
        async with open_host(settings) as host:
            trash = await host.driver.discarded()
            if chat is None:
                return _listed(trash, settings)
            found = _latest(trash, chat, tenant)
            target = _target(found, chat, new, tenant)
            try:
                await host.driver.restore(found.name, target.digest)
            except OwnerHasSandbox:
                raise SandboxError(
                    f"The chat {target.id} has a new sandbox meanwhile. Restore the old one under another name: "
                    f"`cubicle undelete {chat} --as NEW`."
                ) from None
            await asyncio.to_thread(make_chat_index(settings).enter, target)
            return f"Restored {target.id} with its files."

    click.echo(asyncio.run(act()))


def _was_of(each: Discarded, chat: Chat) -> bool:
    return each.owner == chat.digest or (each.note is not None and each.note.chat == chat)


def _latest(trash: Sequence[Discarded], chat: str, tenant: str) -> Discarded:
    """The removed sandbox that is meant. Raises NotRunning."""
    by_name = [each for each in trash if each.name == chat]
    found = by_name or [each for each in trash if _was_of(each, chat_named(chat, tenant))]
    if not found:
        raise NotRunning(f"Nothing of the chat {chat} is in the trash. `cubicle undelete` lists what is there.")
    return max(found, key=lambda each: each.note.at if each.note else 0.0)


def _target(found: Discarded, chat: str, new: str | None, tenant: str) -> Chat:
    """The chat that gets it. Raises NotRunning if nobody can know."""
    if new is not None:
        return chat_named(new, tenant)
    if found.name != chat:
        return chat_named(chat, tenant)
    if found.note is None or found.note.chat is None:
        raise NotRunning(f"Whose {chat} was is not known: name a chat for it by --as.")
    return found.note.chat


def _listed(trash: Sequence[Discarded], settings: Settings) -> str:
    if not trash:
        return f"The trash of DATA_DIR={settings.data_dir} is empty."
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("CHAT", "TENANT", "REMOVED", "SIZE", "SANDBOX", "REASON"):
        table.add_column(title, no_wrap=True, justify="right" if title in ("REMOVED", "SIZE") else "left")
    for each in sorted(trash, key=lambda each: each.note.at if each.note else 0.0):
        note = each.note
        table.add_row(
            escape(note.chat.id) if note and note.chat else "?",
            escape(note.chat.tenant) if note and note.chat else "",
            f"{span(time.time() - note.at)} ago" if note else "?",
            megabytes(note.size) if note and note.size is not None else "?",
            each.name,
            escape(one_line(note.reason, _MAX_REASON)) if note else "its record cannot be read: it is kept",
        )
    show(table)
    return f"{disk_use(trash)}. A sandbox is deleted {settings.trash_days:g} days after it was removed (TRASH_DAYS)."
