"""`cubicle rescue`: what was set aside because it could not be used, and giving a sandbox of it back to a chat."""

from __future__ import annotations

import asyncio
import time

import click
from rich.markup import escape
from rich.table import Table

from cubicle.cli.errors import exits
from cubicle.cli.output import show, span
from cubicle.core.chat import DEFAULT_TENANT, BadChatId, Chat
from cubicle.core.text import one_line
from cubicle.drivers.factory import make_chat_index, make_driver
from cubicle.sandbox.lost_found import Lost, LostFound
from cubicle.settings import BadSettings, Settings, load

_MAX_LENGTH = 200


@click.command()
@click.argument("name", required=False)
@click.argument("chat", required=False)
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Whose chat it is.")
@exits
def rescue(name: str | None, chat: str | None, tenant: str) -> None:
    """List what was set aside in DATA_DIR/lost+found; with NAME and CHAT, give that sandbox to the chat."""
    settings = load()
    lost = LostFound(settings.data_dir).entries()
    if name is None:
        _list(settings, lost)
        return
    if chat is None:
        raise BadSettings("Say which chat is to have it: cubicle rescue NAME CHAT.")
    found = next((one for one in lost if one.name == name), None)
    if found is None:
        raise BadSettings(f"Nothing of the name {name} was set aside; `cubicle rescue` lists what was.")
    try:
        owner = Chat(chat, tenant)
    except BadChatId as error:
        raise BadSettings(str(error)) from None
    sandbox = asyncio.run(_rescue(settings, found, owner))
    click.echo(f"The chat {chat} has the sandbox {sandbox} with all its files.")


async def _rescue(settings: Settings, lost: Lost, chat: Chat) -> str:
    driver = make_driver(settings)
    if not driver.capabilities.rescues:
        raise BadSettings("Only sandboxes of DRIVER=oci are set aside; look at this one in its folder.")
    await driver.open()
    try:
        name = await driver.rescue(lost, chat.digest)
    finally:
        await driver.close()
    chat_index = make_chat_index(settings)
    await asyncio.to_thread(chat_index.open)
    await asyncio.to_thread(chat_index.enter, chat)
    return name


def _list(settings: Settings, lost: list[Lost]) -> None:
    if not lost:
        click.echo(f"Nothing was set aside in DATA_DIR={settings.data_dir}.")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("NAME", "AGE", "WAS", "CHAT", "TENANT", "WHY"):
        table.add_column(title, overflow="fold")
    for one in lost:
        table.add_row(
            escape(one.name),
            span(time.time() - one.at) if one.at is not None else "",
            escape(one_line(one.was, _MAX_LENGTH)),
            escape(one.chat.id) if one.chat else "",
            escape(one_line(one.chat.tenant, _MAX_LENGTH)) if one.chat else "",
            escape(one_line(one.why, _MAX_LENGTH)),
        )
    show(table)
    if any(one.is_sandbox for one in lost):
        click.echo("Give a sandbox back to a chat with: cubicle rescue NAME CHAT")
