"""`cubicle settings`: every setting, its default and what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import click
from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Table

from cubicle.settings import Settings

_PREFACE = """\
# Settings

Printed from the class that reads them (`make docs`). Set them in the environment or in a file `.env` in the folder
where the service starts; flags of `cubicle serve` override both. A value that cannot be used stops the start with a
sentence that names it.

"""


@dataclass(frozen=True, slots=True)
class Row:
    """One setting as people see it."""

    name: str
    default: str
    meaning: str


def rows() -> list[Row]:
    """Every setting, in the order of the class."""
    return [
        Row(
            _variable(name, field),
            _shown(field.get_default(call_default_factory=True)),
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def markdown() -> str:
    """The whole of docs/settings.md."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {_code(row.default)} | {_cell(row.meaning)} |" for row in rows()]
    return _PREFACE + "\n".join(lines) + "\n"


@click.command()
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the page docs/settings.md.")
def settings(as_markdown: bool) -> None:
    """Show every setting, its default and its meaning."""
    if as_markdown:
        click.echo(markdown(), nl=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    table.add_column("default", overflow="fold", max_width=24)
    table.add_column("meaning")
    for row in rows():
        table.add_row(row.name, row.default, row.meaning)
    Console().print(table, markup=False)


def _variable(name: str, field: FieldInfo) -> str:
    match field.validation_alias:
        case str() as alias:
            return alias.upper()
        case AliasChoices(choices=[str() as alias, *_]):
            return alias.upper()
        case _:
            return name.upper()


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
    return text.replace("|", "\\|").replace("\n", " ")
