"""How a command of the command line fails: one sentence and an exit code, never a stack trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from cubicle.machine.errors import SandboxError
from cubicle.settings import BadSettings, load

CHANGES = frozenset(
    {
        "cubicle keys add", "cubicle keys revoke", "cubicle keys rotate", "cubicle keys hash",
        "cubicle links add", "cubicle links revoke", "cubicle links sign-in",
        "cubicle stop", "cubicle rm", "cubicle undelete", "cubicle shell", "cubicle rescue",
        "cubicle export", "cubicle import", "cubicle backup", "cubicle restore", "cubicle webhooks retry",
    }
)  # fmt: skip
"""Commands that the audit log tells of."""

P = ParamSpec("P")
R = TypeVar("R")


def exits(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what may go wrong into a message and exit code 1."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            done = command(*args, **kwargs)
            tell_audit()
            return done
        except click.exceptions.Exit:  # it did what it could, and told of the rest
            tell_audit()
            raise
        except (BadSettings, SandboxError) as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror or error}.") from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None

    return wrapped


def tell_audit() -> None:
    """A command that changed something leaves a note for the audit log: which one, and who ran it."""
    context = click.get_current_context(silent=True)
    path = " ".join(("cubicle", *context.command_path.split()[1:])) if context is not None else ""
    if path not in CHANGES:
        return
    from cubicle.audit import inbox
    from cubicle.operation_settings import AuditMode
    from cubicle.removal import audit_folder

    settings = load()
    if settings.audit is AuditMode.OFF or not settings.data_dir.is_dir():
        return
    try:
        inbox.leave_note(audit_folder(settings.data_dir), "command", {"what": path, "user": inbox.local_user()})
    except OSError as error:
        click.echo(f"The audit log was not told of this: {error.strerror}.", err=True)
