"""`cubicle keys`: the keys of API_KEYS_FILE. A service that runs takes each change within a second or two."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from cubicle.chat.key_file import change_file, read_file
from cubicle.cli.durations import DURATION
from cubicle.cli.errors import exits
from cubicle.cli.output import show, span
from cubicle.core.api_keys import ApiKey, BadKeys, KeyFile, KeyLimits, check_tenant, new_id, new_key
from cubicle.core.chat import DEFAULT_TENANT
from cubicle.core.identity import Role
from cubicle.settings import BadSettings, load


class _Refused(click.ClickException):
    """The file cannot be changed so; the message says why."""


def _file() -> Path:
    path = load().api_keys_file
    if path is None:
        raise BadSettings("Set API_KEYS_FILE to the file that the keys are to be in, say /etc/cubicle/keys.json.")
    return path


def _show_once(record: ApiKey, key: str) -> None:
    click.echo(f"Key {record.id} of tenant {record.tenant} ({record.role.value}). It is shown this once:", err=True)
    click.echo(key)


@click.group()
def keys() -> None:
    """Make, list and end the keys of API_KEYS_FILE."""


@keys.command()
@click.option("--tenant", help="Whose key it is. Not needed for an operator's.")
@click.option("--role", type=click.Choice([role.value for role in Role]), default=Role.USER.value, show_default=True)
@click.option("--label", default="", help="What it is for.")
@click.option("--expires", type=DURATION, help="When it ceases to work, from now: 30m, 12h, 90d. Never if left out.")
@click.option("--calls-per-minute", type=click.IntRange(0), default=0, help="0: what the service allows anybody.")
@click.option("--calls-at-once", type=click.IntRange(0), default=0)
@click.option("--sandboxes", type=click.IntRange(0), default=0)
@exits
def add(
    tenant: str | None,
    role: str,
    label: str,
    expires: int | None,
    calls_per_minute: int,
    calls_at_once: int,
    sandboxes: int,
) -> None:
    """Make a key, and print it."""
    path, now, id = _file(), int(time.time()), new_id()
    chosen = Role(role)
    owner = tenant or (DEFAULT_TENANT if chosen is Role.OPERATOR else "")
    if not owner:
        raise BadSettings("Say whose key it is: --tenant NAME, or --role operator.")
    limits = KeyLimits(calls_per_minute, calls_at_once, sandboxes)
    record = ApiKey(id, owner, chosen, label, now, now + expires if expires else None, limits=limits)
    key = new_key(id)
    try:
        check_tenant(owner, chosen)
        change_file(path, lambda file: _hashed(file, now).with_key(key, record))
    except BadKeys as error:
        raise _Refused(str(error)) from None
    _show_once(record, key)


@keys.command(name="list")
@exits
def list_() -> None:
    """Show the keys of the file, without a key."""
    path, now = _file(), time.time()
    try:
        file = read_file(path)
    except BadKeys as error:
        raise _Refused(str(error)) from None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "tenant", "role", "state", "made", "expires", "limits", "label"):
        table.add_column(column)
    for key in sorted(file.keys, key=lambda key: (key.tenant, key.created)):
        made = f"{span(now - key.created)} ago" if key.created else ""
        state = key.state(now)
        left = f"in {span(key.expires - now)}" if key.expires and state == "works" else ""
        row = (key.id, key.tenant, key.role.value, state, made, left, _limits(key.limits), key.label)
        table.add_row(*map(escape, row), style=None if state == "works" else "dim")
    if file.keys:
        show(table)
    if file.plain:
        click.echo(f"{len(file.plain)} keys can be read in the file. `cubicle keys hash` puts digests in their place.")
    elif not file.keys:
        click.echo(f"{path} has no keys. `cubicle keys add` makes one.")


@keys.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@exits
def revoke(ids: tuple[str, ...]) -> None:
    """End keys, with the sign-ins made with them, what goes on by them, and the links of their tenants."""
    now = int(time.time())

    def change(file: KeyFile) -> KeyFile:
        for id in ids:
            if file.find(id).revoked is None:
                file = file.with_changed(id, revoked=now)
        return file

    try:
        change_file(_file(), change)
    except BadKeys as error:
        raise _Refused(str(error)) from None
    click.echo(f"Revoked: {', '.join(ids)}.")


@keys.command()
@click.argument("id", metavar="ID")
@click.option("--keep-old", type=DURATION, help="How long the old key still works: 1h, 2d. Not at all if left out.")
@exits
def rotate(id: str, keep_old: int | None) -> None:
    """Make a key in place of another: same tenant, role, label and limits."""
    now, fresh = int(time.time()), new_id()
    key = new_key(fresh)

    def change(file: KeyFile) -> KeyFile:
        old = file.find(id)
        if old.revoked is not None:
            raise BadKeys(f"The key {id} is revoked. Make a new one with `cubicle keys add`.")
        lasts = old.expires - old.created if old.expires is not None else None
        made = ApiKey(fresh, old.tenant, old.role, old.label, now, now + lasts if lasts else None, limits=old.limits)
        if keep_old is None:
            file = file.with_changed(id, revoked=now)
        else:
            file = file.with_changed(id, expires=min(now + keep_old, old.expires or now + keep_old))
        return file.with_key(key, made)

    try:
        changed = change_file(_file(), change)
    except BadKeys as error:
        raise _Refused(str(error)) from None
    _show_once(changed.find(fresh), key)


@keys.command(name="hash")
@exits
def hash_() -> None:
    """Put digests in place of the keys that the file shows. They go on working; links and sign-ins end once."""
    now = int(time.time())
    try:
        changed = change_file(_file(), lambda file: file.hashed(now))
    except BadKeys as error:
        raise _Refused(str(error)) from None
    click.echo(f"The file holds {len(changed.keys)} keys, none of which can be read from it.")


def _hashed(file: KeyFile, now: int) -> KeyFile:
    if file.plain:
        click.echo("The keys that the file showed are now digests; they go on working.", err=True)
    return file.hashed(now)


def _limits(limits: KeyLimits) -> str:
    named = {
        "a minute": limits.calls_per_minute,
        "at once": limits.calls_at_once,
        "sandboxes": limits.sandboxes,
    }
    return ", ".join(f"{count} {name}" for name, count in named.items() if count)
