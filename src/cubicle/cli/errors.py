"""How a command of the command line fails: one sentence and an exit code, never a stack trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from cubicle.machine.errors import SandboxError
from cubicle.settings import BadSettings

P = ParamSpec("P")
R = TypeVar("R")


def exits(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what may go wrong into a message and exit code 1."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (BadSettings, SandboxError) as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror or error}.") from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None

    return wrapped
