"""`cubicle links`: links that open one chat, and links that sign a browser in once. A service that runs need not be."""

from __future__ import annotations

import time

import click
from rich.markup import escape
from rich.table import Table

from cubicle import removal
from cubicle.chat.key_file import KeySource
from cubicle.chat.link_store import LinkStore, TooManyLinks
from cubicle.chat.links import Links, kept_secret
from cubicle.cli.durations import DURATION
from cubicle.cli.errors import exits
from cubicle.cli.output import show, span
from cubicle.cli.sandboxes import chat_named, tenant_option
from cubicle.core.api_keys import BadKeys
from cubicle.core.identity import LinkAccess
from cubicle.core.paths import readable
from cubicle.core.signing import SignIn
from cubicle.core.text import one_line
from cubicle.settings import BadSettings, Settings, base_url, load


def _opened(settings: Settings) -> Links:
    secret = kept_secret(settings.data_dir)
    store = LinkStore(removal.links_folder(settings.data_dir))
    store.open()
    try:
        ring = KeySource(settings.api_keys_file, settings.mcp_api_key, secret).read()
    except BadKeys as error:
        raise BadSettings(str(error)) from None
    return Links(secret, base_url(settings), ring, store=store)


@click.group()
def links() -> None:
    """Make, list and revoke links that open a chat."""


@links.command()
@click.argument("chat")
@tenant_option
@click.option("--access", type=click.Choice([one.value for one in LinkAccess]), default="view", show_default=True)
@click.option("--for", "lasts", type=DURATION, default="7d", show_default=True, help="How long it works: 30m, 12h, 7d.")
@click.option("--label", default="", help="Whom it is for.")
@exits
def add(chat: str, tenant: str, access: str, lasts: int, label: str) -> None:
    """Make a link to the workspace of CHAT, and print it."""
    made = _opened(load())
    if not made.locked:
        raise BadSettings("The service has no key: everybody who reaches it may open every chat, without a link.")
    named = chat_named(chat, tenant)
    if not made.has_tenant(tenant):
        raise BadSettings(f"No key of the tenant {tenant} works: a link would open nothing.")
    try:
        link, key = made.made(named, LinkAccess(access), lasts / 3600, label)
    except TooManyLinks as error:
        raise BadSettings(str(error)) from None
    click.echo(f"Link {link.id}: {access}, for {span(lasts)}.", err=True)
    click.echo(made.page(named, key))


@links.command(name="list")
@exits
def list_() -> None:
    """Show the links that were made by hand, without their keys."""
    table, now = Table(box=None, pad_edge=False, header_style="bold"), time.time()
    for column in ("chat", "tenant", "link", "opens", "access", "expires", "label"):
        table.add_column(column)
    for known in _opened(load()).store.listed():
        assert known.chat is not None
        for link in known.links:
            left = f"in {span(link.expires - now)}" if link.expires > now else "expired"
            opens = one_line(readable(link.path)) or link.opens
            row = (known.chat.id, known.chat.tenant, link.id, opens, link.access.value, left, link.label)
            table.add_row(*map(escape, row))
    if table.row_count:
        show(table)
    else:
        click.echo("No links were made by hand.")


@links.command()
@click.argument("chat")
@click.argument("link", required=False)
@tenant_option
@exits
def revoke(chat: str, link: str | None, tenant: str) -> None:
    """End LINK of CHAT; without LINK every link of the chat, those of its prompts and private ports too."""
    store, named = _opened(load()).store, chat_named(chat, tenant)
    if link is None:
        store.revoke_all(named)
        click.echo(f"Every link of the chat {chat} has ended.")
    elif store.revoke(named, link):
        click.echo(f"The link {link} has ended.")
    else:
        raise BadSettings(f"The chat {chat} has no link {link}. `cubicle links list` shows those that there are.")


@links.command(name="sign-in")
@click.option("--key", "key_id", help="Id of the key to sign in by (`cubicle keys list`); MCP_API_KEY if left out.")
@click.option("--for", "lasts", type=DURATION, default="10m", show_default=True, help="How long it waits to be used.")
@exits
def sign_in(key_id: str | None, lasts: int) -> None:
    """Print a link that signs one browser in, once, without the key being typed."""
    settings = load()
    secret = kept_secret(settings.data_dir)
    try:
        ring = KeySource(settings.api_keys_file, settings.mcp_api_key, secret).read()
    except BadKeys as error:
        raise BadSettings(str(error)) from None
    if not ring:
        raise BadSettings("The service has no key: nobody has to sign in.")
    key = ring.of_id(key_id) if key_id else ring.opens(settings.mcp_api_key)
    if key is None:
        raise BadSettings("There is no such key, or it works no longer. Name one by --key (`cubicle keys list`).")
    who = SignIn(key.tenant, key.role, key.id)
    click.echo(f"It signs in once, as tenant {key.tenant} ({key.role.value}), within {span(lasts)}.", err=True)
    click.echo(Links(secret, base_url(settings), ring).one_time(who, lasts))
