"""`cubicle settings`: every setting, its value here, its default and what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from cubicle.cli.output import is_terminal, show
from cubicle.settings import BadSettings, Settings, load, misspelt

_PREFACE = """\
# Settings

Printed from the class that reads them (`make docs`). Set them in the environment or in a file `.env` in the folder
where the service starts; flags of `cubicle serve` override both. A value that cannot be used stops the start with a
sentence that names the setting; a line of `.env` that is not `NAME=value`, with a sentence that has its number.

"""

_SECRET = ("_KEY", "_TOKEN", "_HEADERS", "_SECRET")


@dataclass(frozen=True, slots=True)
class Row:
    """One setting as people see it."""

    name: str
    default: str
    meaning: str


def rows() -> list[Row]:
    """Every setting, in the order of the class; those of the classes that it is made of come behind its own."""
    inherited = [name for name in Settings.model_fields if name not in Settings.__annotations__]
    own = [name for name in Settings.model_fields if name in Settings.__annotations__]
    return [
        Row(name.upper(), _shown(field.get_default(call_default_factory=True)), field.description or "")
        for name, field in ((name, Settings.model_fields[name]) for name in (*own, *inherited))
    ]


def in_force() -> dict[str, str]:
    """What each setting is here: of a secret only whether it is set. Raises BadSettings."""
    found = {name.upper(): _shown(value) for name, value in load()}
    return {name: "(set)" if value and name.endswith(_SECRET) else value for name, value in found.items()}


def markdown() -> str:
    """The whole of docs/settings.md."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {_code(row.default)} | {_cell(row.meaning)} |" for row in rows()]
    return _PREFACE + "\n".join(lines) + "\n"


@click.command()
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the page docs/settings.md.")
def settings(as_markdown: bool) -> None:
    """Show every setting, what it is here, and its meaning. What is not at its default is marked with *."""
    if as_markdown:
        click.echo(markdown(), nl=False)
        return
    try:
        values = in_force()
    except BadSettings as error:
        click.echo(f"Only the defaults are shown, for what is set cannot be used: {error}\n", err=True)
        values = {}
    for name, meant in misspelt().items():
        click.echo(f"{name} in .env is not a setting: did you mean {meant}?\n", err=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold", max_width=28 if is_terminal() else None)
    table.add_column("meaning")
    for row in rows():
        value = values.get(row.name, row.default)
        changed = value != row.default
        meaning = f"{row.meaning} Default: {row.default or 'empty'}." if changed else row.meaning
        name = f"{row.name} *" if changed else row.name
        table.add_row(name, escape(_line(value)), escape(meaning), style="bold" if changed else None)
    show(table)


def _shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case Enum():
            return str(value.value)
        case bool():
            return str(value).lower()
        case tuple() | list() | frozenset():
            return ",".join(str(part) for part in value)
        case float() if value.is_integer():
            return str(int(value))
        case _:
            return str(value)


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    return text.replace("\n", " ")
