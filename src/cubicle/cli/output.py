"""How the commands print a table: as wide as the terminal; elsewhere a row is a line, whatever its length."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

_UNBOUNDED = 100_000


def is_terminal() -> bool:
    """Whether a person looks at what is printed."""
    return Console().is_terminal


def show(table: Table) -> None:
    """Print it. In a file or a pipe nothing is cut, wrapped or folded: a program or `grep` reads it."""
    if is_terminal():
        Console(highlight=False).print(table)
        return
    wide = Console(highlight=False, width=_UNBOUNDED)
    with wide.capture() as printed:
        wide.print(table)
    for line in printed.get().splitlines():
        click.echo(line.rstrip())


def span(seconds: float) -> str:
    """A time in its largest unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def megabytes(size: int) -> str:
    """A size of files, in whole MB; a small one in KB."""
    return f"{size / 1000**2:,.0f} MB" if size >= 1000**2 else f"{size / 1000:.0f} KB"
