"""The command line: each command is a module of this folder. Tables and progress by rich."""

from __future__ import annotations

import importlib

import click

__all__ = ["main"]

_COMMANDS = {
    "serve": "cubicle.cli.serve",
    "doctor": "cubicle.cli.doctor",
    "image": "cubicle.cli.image",
    "ps": "cubicle.cli.sandboxes",
    "shell": "cubicle.cli.sandboxes",
    "stop": "cubicle.cli.sandboxes",
    "rm": "cubicle.cli.trash",
    "undelete": "cubicle.cli.trash",
    "journal": "cubicle.cli.journal",
    "export": "cubicle.cli.backup",
    "import": "cubicle.cli.backup",
    "backup": "cubicle.cli.backup",
    "restore": "cubicle.cli.backup",
    "port": "cubicle.cli.port",
    "rescue": "cubicle.cli.rescue",
    "keys": "cubicle.cli.keys",
    "links": "cubicle.cli.links",
    "audit": "cubicle.cli.audit",
    "webhooks": "cubicle.cli.webhooks",
    "settings": "cubicle.cli.settings",
}


class Commands(click.Group):
    """Imports a command when it is called: `cubicle --help` does not pay for the whole service."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        module = _COMMANDS.get(name)
        if module is None:
            return None
        found = importlib.import_module(module)
        command = getattr(found, name, None) or getattr(found, f"{name}_")  # `import` is a word of Python
        return command if isinstance(command, click.Command) else None


@click.group(cls=Commands)
@click.version_option(package_name="cubicle")
def main() -> None:
    """Cubicle gives any AI model its own computer."""
