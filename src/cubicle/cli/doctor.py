"""`cubicle doctor`: can this host hold sandboxes, and if not, which command mends it."""

from __future__ import annotations

import asyncio
import errno
import platform
import socket
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from cubicle.cli.failures import exits
from cubicle.drivers.oci import checks
from cubicle.drivers.oci.checks import Check, Subject, Verdict
from cubicle.drivers.oci.driver import RUN_DIR
from cubicle.drivers.oci.images import SUBUID_START, ImageStore
from cubicle.settings import DriverName, Settings, load

_COLOURS = {Verdict.GOOD: "green", Verdict.WEAK: "yellow", Verdict.MISSING: "red"}


@click.command()
@exits
def doctor() -> None:
    """Check this host for all that sandboxes need; exit code 1 when something required is missing."""
    settings = load()
    found = examine(settings)
    console = Console(highlight=False)
    console.print(_table(found))
    missing = [check for check in found if check.verdict is Verdict.MISSING]
    if missing:
        console.print(f"[red]{len(missing)} of {len(found)} checks failed.[/] Mend them from the top down.")
        raise click.exceptions.Exit(1)
    console.print("[green]Sandboxes can run here.[/]")


def examine(settings: Settings) -> list[Check]:
    """Every check that concerns these settings."""
    found = [python(), port(settings)]
    if settings.driver is DriverName.OCI:
        found += asyncio.run(checks.run(_subject(settings)))
    return found


def python() -> Check:
    """Told for the report: an older one than the package needs does not come this far."""
    return Check("Python", Verdict.GOOD, platform.python_version())


def port(settings: Settings) -> Check:
    """Whether the service could listen where the settings say."""
    place = f"{settings.host}:{settings.port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Check("port", Verdict.WEAK, f"{place} is taken, perhaps by this service", "PORT=… cubicle serve")
        return Check("port", Verdict.MISSING, f"{place}: {error.strerror}", "set HOST and PORT")
    return Check("port", Verdict.GOOD, f"{place} is free")


def _subject(settings: Settings) -> Subject:
    return Subject(
        data_dir=settings.data_dir,
        bases=ImageStore(settings.image_dir),
        image=settings.sandbox_image,
        runtime=settings.oci_runtime,
        first_id=SUBUID_START,
        run_dir=RUN_DIR,
        pool_disk_bytes=settings.sandbox_disk_mb * 1024**2,
    )


def _table(found: Sequence[Check]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("check", "state", "found", "to mend it"):
        table.add_column(heading, overflow="fold")
    for check in found:
        state = f"[{_COLOURS[check.verdict]}]{check.verdict.value}[/]"
        table.add_row(check.name, state, check.found, check.mend)
    return table
