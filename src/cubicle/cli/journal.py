"""`cubicle journal`: what was done in a chat, beside the service or without it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click

from cubicle.cli.errors import exits
from cubicle.cli.sandboxes import chat_named, tenant_option
from cubicle.core.chat import Chat
from cubicle.core.text import one_line
from cubicle.http_api.assets import STATIC
from cubicle.journal import anchor, reading
from cubicle.journal.format import Entry
from cubicle.journal.replay_file import replay_pieces
from cubicle.journal.verify import verify
from cubicle.machine.errors import NotRunning
from cubicle.record import BadRecord
from cubicle.removal import journal_folder
from cubicle.settings import load

_MAX_LINE = 160
_MAX_LINES = 20
"""Of the output of one call, from each end."""


@click.command()
@click.argument("chat")
@click.option("--json", "raw", is_flag=True, help="The entries as they are on disk, one JSON object a line.")
@click.option("--check", "--verify", "check", is_flag=True, help="Check the chain of hashes, and say what is missing.")
@click.option("--html", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write a page that replays it.")
@tenant_option
@exits
def journal(chat: str, raw: bool, check: bool, file: Path | None, tenant: str) -> None:
    """Print what was done in CHAT: calls, uploads, take-overs, denials, starts and stops."""
    settings, key = load(), chat_named(chat, tenant)
    folder = journal_folder(settings.data_dir) / key.digest
    if check:
        _check(key, folder)
    elif not reading.segments(folder):
        raise NotRunning(f"There is no journal of the chat {key.id} in DATA_DIR={settings.data_dir}.")
    elif file is not None:
        _write_replay(key, folder, file)
    elif raw:
        _print_raw(folder)
    else:
        for entry in reading.read_entries(folder, 0, 1 << 40):
            for line in _lines(entry):
                click.echo(line)


def _write_replay(chat: Chat, folder: Path, file: Path) -> None:
    """A new file of its owner's only, whole or not at all: a journal holds what was said in the chat."""
    blob = partial(reading.read_blob, folder)
    pieces = replay_pieces(
        (STATIC / "replay.html").read_bytes(), chat.id, time.time(), reading.all_entries(folder), blob
    )
    if file.is_symlink() or (file.exists() and not file.is_file()):  # a pipe, say: /dev/stdout
        with open(file, "wb") as output:
            output.writelines(pieces)
        return
    draft = file.with_name(f".{file.name[:100]}.{os.getpid()}.part")
    try:
        with open(draft, "xb", opener=partial(os.open, mode=0o600)) as output:
            output.writelines(pieces)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    click.echo(f"Wrote {one_line(str(file), 500)}: open it in a browser.")


def _check(chat: Chat, folder: Path) -> None:
    known = anchor.peek(folder.parent).get(bytes.fromhex(chat.digest), 0)
    found = verify(folder, known)
    if not found.lines and not found.problems:
        raise NotRunning(f"There is no journal of the chat {chat.id}.")
    click.echo(f"{found.lines} entries are good, numbers {found.first} to {found.last}.")
    for noted in found.noted:
        click.echo(f"Missing, as the journal says: {one_line(noted, 500)}")
    for name in found.set_aside:
        click.echo(f"Set aside because it was damaged: {one_line(name)}")
    for problem in found.problems:
        click.echo(f"NOT GOOD: {one_line(problem, 500)}")
    if found.problems:
        raise click.exceptions.Exit(1)


def _print_raw(folder: Path) -> None:
    """Lines are ASCII as they were written; what is not was changed, and is shown as such."""
    for _, path in reading.segments(folder):
        try:
            lines, _ = reading.read_lines(path)
        except (BadRecord, FileNotFoundError):
            continue
        for text in lines:
            click.echo("".join(c if " " <= c <= "~" else "\ufffd" for c in text.decode("ascii", "replace")))


def _lines(entry: Entry) -> list[str]:
    """One entry for a person. Nothing of it is obeyed by a terminal."""
    fields = entry.fields
    stamp = f"{entry.number:>6}  {_date(entry.at)}  "
    match entry.kind:
        case "call":
            given = fields.get("arguments")
            arguments = given if isinstance(given, dict) else {}
            shown = "  ".join(f"{name}={one_line(str(value), 100)}" for name, value in arguments.items())
            who = f" by {one_line(_text(fields, 'user'), 60)}" if fields.get("user") else ""
            return [f"{stamp}{_id(fields)} {one_line(_text(fields, 'tool'), 40)}{who}: {one_line(shown, _MAX_LINE)}"]
        case "output":
            return [f"{stamp}{_id(fields)} runs: … {one_line(_text(fields, 'text')[-_MAX_LINE:], _MAX_LINE)}"]
        case "end":
            return [f"{stamp}{_id(fields)} {_ending(fields)}", *_output(fields)]
        case _:
            shown = "  ".join(f"{name}={one_line(str(value), 300)}" for name, value in fields.items() if value)
            return [f"{stamp}{one_line(entry.kind, 40)}: {one_line(shown, 600)}"]


def _ending(fields: Mapping[str, object]) -> str:
    parts = [one_line(_text(fields, "ending"), 40)]
    if fields.get("exit_code") is not None:
        parts.append(f"exit code {one_line(str(fields['exit_code']), 10)}")
    parts.append(f"{one_line(str(fields.get('seconds', '?')), 12)} s")
    parts += [one_line(str(note), 300) for note in _list(fields, "notes")[:10]]
    parts += [
        f"wrote {one_line(str(file.get('path')), 200)}" for file in _list(fields, "files") if isinstance(file, dict)
    ]
    return ", ".join(parts)


def _output(fields: Mapping[str, object]) -> list[str]:
    """The first and last lines of what a call printed, or of its answer."""
    text, cut = _text(fields, "head") + _text(fields, "tail"), fields.get("cut") or 0
    lines = (text or _text(fields, "result")).splitlines()
    shown = [f"          | {one_line(line, _MAX_LINE)}" for line in lines]
    if len(shown) > 2 * _MAX_LINES or cut:
        more = (
            f"          | … ({max(0, len(shown) - 2 * _MAX_LINES)} lines and {one_line(str(cut), 20)} characters more)"
        )
        shown = [*shown[:_MAX_LINES], more, *shown[_MAX_LINES:][-_MAX_LINES:]]
    return shown


def _id(fields: Mapping[str, object]) -> str:
    return one_line(_text(fields, "call"), 16)


def _date(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "?".ljust(19)


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _list(fields: Mapping[str, object], name: str) -> list[object]:
    value = fields.get(name)
    return value if isinstance(value, list) else []
