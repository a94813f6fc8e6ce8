"""`cubicle webhooks`: what waits to be delivered and what could not be, beside a service that runs or without one."""

from __future__ import annotations

import base64
import contextlib
import secrets
import sqlite3
import time
from collections.abc import Iterator

import click
from rich.markup import escape
from rich.table import Table

from cubicle.cli.errors import exits
from cubicle.cli.output import show, span
from cubicle.core.text import one_line
from cubicle.removal import webhooks_folder
from cubicle.settings import BadSettings, load
from cubicle.webhooks import receivers
from cubicle.webhooks.receivers import SECRET_PREFIX, BadReceivers
from cubicle.webhooks.store import Letter, Store

_SECRET_BYTES = 32


@contextlib.contextmanager
def _opened() -> Iterator[Store]:
    settings = load()
    store = Store(webhooks_folder(settings.data_dir), across_hosts=settings.replicas > 1)
    try:
        if not store.exists:
            raise BadSettings("There is no queue of webhooks yet: a service with WEBHOOKS_FILE makes it.")
        store.open()
        yield store
    except sqlite3.Error as error:
        raise BadSettings(f"The queue of webhooks cannot be read: {error}.") from None
    finally:
        store.close()


@click.group()
def webhooks() -> None:
    """Show what webhooks wait or failed, and send them again."""


@webhooks.command(name="list")
@click.option("--all", "everything", is_flag=True, help="Also those that wait for their next attempt.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=200, show_default=True, help="How many to show.")
@exits
def list_(everything: bool, limit: int) -> None:
    """Show the receivers, and the dead letters: messages that were given up. The newest come first."""
    with _opened() as store:
        counts, dropped = store.counts(), store.dropped()
        letters = [
            *(store.letters(dead=False, count=limit) if everything else ()),
            *store.letters(dead=True, count=limit),
        ]
    names = {one.name for one in _receivers()} | {one.receiver for one in counts}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("receiver", "waiting", "dead"):
        table.add_column(column)
    for name in sorted(names):
        found = next((one for one in counts if one.receiver == name), None)
        table.add_row(escape(name), str(found.waiting if found else 0), str(found.dead if found else 0))
    show(table)
    if letters:
        click.echo()
        show(_table(letters))
    if dropped:
        click.echo(f"{dropped} dead letters were dropped, as there were too many.")


@webhooks.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@click.option("--receiver", default="", help="Only to this receiver.")
@exits
def retry(ids: tuple[str, ...], everything: bool, receiver: str) -> None:
    """Send messages again, by their ids or all dead letters; with the same ids, so that a receiver knows them."""
    if bool(ids) == everything:
        raise BadSettings("Name the ids of messages, or --all.")
    with _opened() as store:
        found = store.retry(ids or None, receiver)
    if ids and not found:
        raise BadSettings("There is no such message. `cubicle webhooks list --all` shows those that there are.")
    click.echo(f"{found} message{'s' * (found != 1)} will be sent now, or as soon as the service runs.")


@webhooks.command()
def secret() -> None:
    """Print a new secret for a receiver. It is kept nowhere."""
    click.echo(SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode())


def _receivers() -> tuple[receivers.Receiver, ...]:
    file = load().webhooks_file
    if file is None:
        return ()
    try:
        return receivers.read(file)
    except BadReceivers as error:
        raise BadSettings(str(error)) from None


def _table(letters: list[Letter]) -> Table:
    table, now = Table(box=None, pad_edge=False, header_style="bold"), time.time()
    for column in ("id", "event", "tenant", "age", "receiver", "state", "attempts", "why"):
        table.add_column(column)
    for one in letters:
        row = (one.id, one.type, one.tenant or "-", span(now - one.at), one.receiver, one.state, str(one.attempts))
        table.add_row(*(escape(one_line(cell, 200)) for cell in (*row, one.error)))
    return table
