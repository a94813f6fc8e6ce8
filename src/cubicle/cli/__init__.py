"""The command line: each command is a module of this folder. Tables and progress by rich."""

from __future__ import annotations

import click

from cubicle.cli.settings import settings

__all__ = ["main"]


@click.group()
@click.version_option(package_name="cubicle")
def main() -> None:
    """Cubicle gives any AI model its own computer."""


main.add_command(settings)
