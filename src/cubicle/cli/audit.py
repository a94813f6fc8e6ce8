"""`cubicle audit`: the audit log, checked, shown and exported. It reads the files; a service may run meanwhile."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from click.core import ParameterSource

from cubicle.audit.audit import Audit
from cubicle.audit.files import Head
from cubicle.audit.inbox import read_notes
from cubicle.audit.verify import check_log
from cubicle.chat.links import kept_secret
from cubicle.cli.durations import DURATION
from cubicle.cli.errors import exits
from cubicle.cli.sandboxes import chat_named, tenant_option
from cubicle.core.text import one_line
from cubicle.journal import format, reading
from cubicle.journal.format import Entry
from cubicle.record import BadRecord
from cubicle.removal import audit_folder
from cubicle.settings import Settings, load

_FOLLOW_SECONDS = 0.5
_HEAD = re.compile(r"(\d{1,15}):([0-9a-f]{64})")


class _HeadType(click.ParamType[Head]):
    name = "number:hash"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Head:
        match = _HEAD.fullmatch(value)
        if match is None:
            self.fail("it is a number, a colon and 64 hexadecimal digits, as `cubicle audit verify` prints them.")
        return Head(int(match[1]), match[2])


@click.group()
def audit() -> None:
    """Check, show and export the audit log."""


worker_option = click.option(
    "--worker", type=click.IntRange(1), default=1, show_default=True, help="Whose log, with WORKERS."
)


def _folders(data_dir: Path) -> list[Path]:
    """The logs of all workers, the first one's first."""
    first = audit_folder(data_dir)
    others = [path for path in first.parent.glob(f"{first.name}-*") if path.name.rpartition("-")[2].isdecimal()]
    return [first, *sorted(others, key=lambda path: int(path.name.rpartition("-")[2]))]


def _folder(data_dir: Path, worker: int) -> Path:
    first = audit_folder(data_dir)
    return first if worker == 1 else first.with_name(f"{first.name}-{worker}")


@audit.command()
@worker_option
@click.option("--head", type=_HeadType(), help="NUMBER:HASH that an earlier check printed, or the service's log.")
@exits
def verify(worker: int, head: Head | None) -> None:
    """Check the chain of hashes: exit code 1 if anything was changed, removed or swapped. With WORKERS that of each
    worker, unless --worker or --head names one."""
    data_dir = load().data_dir
    chosen = click.get_current_context().get_parameter_source("worker") is not ParameterSource.DEFAULT
    folders = [_folder(data_dir, worker)] if chosen or head is not None else _folders(data_dir)
    good = [_verify(folder, head, named=len(folders) > 1) for folder in folders]
    if not all(good):
        raise click.exceptions.Exit(1)


def _verify(folder: Path, head: Head | None, *, named: bool) -> bool:
    if named:
        click.echo(f"{folder.name}:")
    found = check_log(folder, head)
    if not found.records and not found.problems:
        raise click.ClickException(f"There is no audit log in {folder}.")
    click.echo(f"{found.records} records are good, numbers {found.first} to {found.last}.")
    for noted in found.noted:
        click.echo(f"Missing, as the log says: {one_line(noted, 500)}")
    for problem in found.problems:
        click.echo(f"NOT GOOD: {one_line(problem, 500)}")
    if waiting := len(read_notes(folder)):
        click.echo(f"{waiting} notes of the command line wait for a service to take them.")
    click.echo(f"Head: {found.last}:{found.hash}")
    return not found.problems


@audit.command()
@worker_option
@click.option("-n", "--lines", type=click.IntRange(0), default=20, show_default=True, help="Records to begin with.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@click.option("--kind", multiple=True, help="Only records of this kind, say call or refused. May be given again.")
@click.option("--user", help="Only what this user did.")
@click.option("--chat", help="Only what was done in this chat.")
@tenant_option
@exits
def tail(
    worker: int, lines: int, follow: bool, kind: tuple[str, ...], user: str | None, chat: str | None, tenant: str
) -> None:
    """Show the last records."""
    settings = load()
    folder = _folder(settings.data_dir, worker)
    wanted = _Wanted(kind, user, _digest(settings, chat, tenant) if chat else None)
    newest, last = _newest(folder, wanted, lines)
    for entry in newest:
        click.echo(_line(entry))
    while follow:
        time.sleep(_FOLLOW_SECONDS)
        for entry in reading.read_entries(folder, last):
            last = max(last, entry.number)
            if wanted.fits(entry):
                click.echo(_line(entry))


@audit.command()
@click.option("--since", type=DURATION, help="Only records of this last time: 30m, 12h, 90d.")
@click.option("--kind", multiple=True, help="Only records of this kind. May be given again.")
@click.option("--user", help="Only what this user did.")
@click.option("--chat", help="Only what was done in this chat.")
@tenant_option
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="A new file; standard output if not.")
@exits
def export(
    since: int | None, kind: tuple[str, ...], user: str | None, chat: str | None, tenant: str, output: Path | None
) -> None:
    """Write records as JSON lines. All of them: byte for byte as on disk, and their chain can be checked elsewhere."""
    settings = load()
    wanted = _Wanted(
        kind, user, _digest(settings, chat, tenant) if chat else None, time.time() - since if since else None
    )
    count = 0
    with open(output, "xb") if output is not None else click.open_file("-", "wb") as file:
        for text in itertools.chain.from_iterable(map(_texts, _folders(settings.data_dir))):
            entry = None if wanted.is_all else format.entry(text)
            if wanted.is_all or (entry is not None and wanted.fits(entry)):
                file.write(_harmless(text) + b"\n")
                count += 1
    click.echo(f"{count} records.", err=True)


class _Wanted:
    """Which records are asked for."""

    def __init__(self, kinds: tuple[str, ...], user: str | None, chat: str | None, since: float | None = None) -> None:
        self._kinds, self._user, self._chat, self._since = kinds, user, chat, since
        self.is_all = not kinds and user is None and chat is None and since is None

    def fits(self, entry: Entry) -> bool:
        return (
            (not self._kinds or entry.kind in self._kinds)
            and (self._user is None or entry.fields.get("user") == self._user)
            and (self._chat is None or entry.fields.get("chat") == self._chat)
            and (self._since is None or entry.at >= self._since)
        )


def _newest(folder: Path, wanted: _Wanted, most: int) -> tuple[list[Entry], int]:
    """The last records that are asked for, and the number of the last one of all."""
    found: deque[Entry] = deque()
    last = 0
    for _, path in reversed(reading.segments(folder)):
        lines, _ = reading.read_lines(path)
        for text in reversed(lines):
            entry = format.entry(text)
            if entry is None:
                continue
            last = max(last, entry.number)
            if len(found) >= most:
                return list(found), last
            if wanted.fits(entry):
                found.appendleft(entry)
    return list(found), last


def _digest(settings: Settings, chat: str, tenant: str) -> str:
    """What stands in the log for a chat."""
    return Audit(Path(), kept_secret(settings.data_dir)).chat_digest(chat_named(chat, tenant))


def _texts(folder: Path) -> Iterator[bytes]:
    for _, path in reading.segments(folder):
        try:
            lines, _ = reading.read_lines(path)
        except (BadRecord, FileNotFoundError) as error:
            click.echo(f"{path.name} cannot be read: {error}", err=True)
            continue
        yield from lines


def _harmless(text: bytes) -> bytes:
    """Lines are ASCII as they were written; what is not was changed, and no terminal obeys it."""
    return (
        text if text.isascii() and text.decode("ascii").isprintable() else json.dumps(text.decode("latin-1")).encode()
    )


def _line(entry: Entry) -> str:
    """One record for a person. Nothing of it is obeyed by a terminal."""
    who = " ".join(
        one_line(str(entry.fields[name]), 80) for name in ("tenant", "user", "key") if entry.fields.get(name)
    )
    rest = {name: value for name, value in entry.fields.items() if name not in ("tenant", "user", "key", "request")}
    return f"{entry.number:>7}  {_date(entry.at)}  {one_line(entry.kind, 32):<12} {who or '-'}  {_shown(rest)}"


def _shown(fields: Mapping[str, object]) -> str:
    return "  ".join(
        f"{one_line(name, 32)}={one_line(str(value), 80)}" for name, value in fields.items() if value != ""
    )


def _date(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "?".ljust(19)
