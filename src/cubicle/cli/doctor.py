"""`cubicle doctor`: can this host hold sandboxes, and if not, which command fixes it."""

from __future__ import annotations

import asyncio
import errno
import platform
import socket
import time
from collections.abc import Sequence

import click
import httpx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cubicle.cli.errors import exits
from cubicle.cli.output import show
from cubicle.drivers.common.checks import Check, Verdict
from cubicle.drivers.factory import cluster_finder, make_driver, make_limits
from cubicle.drivers.oci import checks
from cubicle.drivers.oci.checks import HostSubject
from cubicle.drivers.oci.driver import RUN_DIR
from cubicle.images.store import SUBUID_START, ImageStore
from cubicle.isolation import runner, startup_check
from cubicle.isolation.runner import Finding, Report
from cubicle.isolation.runner import ProbeVerdict as ProbeVerdict
from cubicle.isolation.startup_check import IsolationReport
from cubicle.machine.errors import Unusable
from cubicle.sandbox.driver import Driver, SandboxLimits
from cubicle.sandbox.lost_found import LostFound
from cubicle.sandbox.service_lock import service_of
from cubicle.settings import DriverName, Settings, load

_LAYER_COLOURS = {
    ProbeVerdict.HOLDS: "green",
    ProbeVerdict.WEAK: "yellow",
    ProbeVerdict.UNCHECKED: "yellow",
    ProbeVerdict.MISSING: "red",
}
_COLOURS = {Verdict.GOOD: "green", Verdict.WEAK: "yellow", Verdict.MISSING: "red"}
_HEALTH_SECONDS = 10.0


@click.command()
@click.option("--prove", is_flag=True, help="Also start throw-away sandboxes and try to get out of them.")
@exits
def doctor(prove: bool) -> None:
    """Check this host for all that sandboxes need; exit code 1 when something required is missing."""
    settings = load()
    found = examine(settings)
    console = Console(highlight=False)
    show(_table(found))
    missing = [check for check in found if check.verdict is Verdict.MISSING]
    if missing:
        console.print(f"[red]{len(missing)} of {len(found)} checks failed.[/] Mend them from the top down.")
        raise click.exceptions.Exit(1)
    console.print("[green]Sandboxes can run here.[/]")
    if prove:
        _prove(settings, console)


def _prove(settings: Settings, console: Console) -> None:
    """Try every layer, show what held, and keep it for the service; exit code 1 when one does not."""
    if settings.driver is DriverName.MEMORY:
        raise Unusable("DRIVER=memory has no isolation: there is nothing to prove.")
    with console.status("trying to get out of a sandbox"):
        report = asyncio.run(proved(make_driver(settings), make_limits(settings)))
        startup_check.keep(startup_check.file_of(settings), IsolationReport(report, time.time()))
    show(_walls_table(report))
    count = len(report.findings)
    if report.missing:
        console.print(f"[red]{len(report.missing)} of {count} ways out are open.[/]")
        raise click.exceptions.Exit(1)
    tried = count - len(report.unchecked)
    console.print(f"[green]{tried} ways out tried, none is open.[/] Strength: {report.strength.value}.")
    if report.unchecked:
        console.print(f"[yellow]{len(report.unchecked)} are not checked:[/] run this where the engine is to try them.")


async def proved(driver: Driver, limits: SandboxLimits) -> Report:
    """What every attempt finds on a driver that is not open yet."""
    await driver.open()
    try:
        host = await driver.host()
        return await runner.prove(driver, limits, kernel=host.kernel, here=host.here)
    finally:
        await driver.close()


def _walls_table(report: Report) -> Table:
    """One line for each layer, and one for each way out that is not quite shut."""
    table = Table(box=None, pad_edge=False)
    for title in ("LAYER", "", "ATTEMPTS", "FOUND"):
        table.add_column(title, overflow="fold")
    by_layer: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_layer.setdefault(finding.layer, []).append(finding)
    for layer, findings in by_layer.items():
        odd = [finding for finding in findings if finding.verdict is not ProbeVerdict.HOLDS]
        worst = max((finding.verdict for finding in odd), default=ProbeVerdict.HOLDS, key=list(ProbeVerdict).index)
        said = "; ".join(f"{finding.attempt}: {finding.said}" for finding in odd)
        table.add_row(layer, f"[{_LAYER_COLOURS[worst]}]{worst.value}[/]", str(len(findings)), escape(said))
    return table


def examine(settings: Settings) -> list[Check]:
    """Every check that concerns these settings."""
    found = [python(), port(settings), set_aside(settings)]
    if settings.driver is DriverName.OCI:
        found += asyncio.run(checks.run(_subject(settings)))
    if settings.driver is DriverName.DOCKER:
        # The engine's client takes a second to import, and the other drivers do without.
        from cubicle.drivers.docker import checks as docker_checks
        from cubicle.drivers.docker.engine import EngineAddress

        subject = docker_checks.DockerSubject(
            EngineAddress(settings.docker_host, settings.docker_cert_path),
            settings.docker_runtime,
            ImageStore(settings.image_dir),
            settings.sandbox_image,
            settings.docker_network,
        )
        found += asyncio.run(docker_checks.run(subject))
    if settings.driver is DriverName.KUBERNETES:
        found += asyncio.run(_examine_cluster(settings))
    return found


async def _examine_cluster(settings: Settings) -> list[Check]:
    from cubicle.drivers.kubernetes import checks as cluster_checks

    find, files = cluster_finder(settings), settings.kubernetes_files
    return await cluster_checks.run(find, settings.kubernetes_image, files, settings.kubernetes_claim)


def python() -> Check:
    """Told for the report: an older one than the package needs does not come this far."""
    return Check("Python", Verdict.GOOD, platform.python_version())


def set_aside(settings: Settings) -> Check:
    """What the service could not use and kept; somebody may miss it."""
    lost = LostFound(settings.data_dir).entries()
    if not lost:
        return Check("lost+found", Verdict.GOOD, "nothing was set aside")
    return Check("lost+found", Verdict.WEAK, f"{len(lost)} set aside, last: {lost[-1].why}", "cubicle rescue")


def port(settings: Settings) -> Check:
    """Whether the service could listen where the settings say, or does already."""
    place = f"{settings.host}:{settings.port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _taken_port(settings, place)
        return Check("port", Verdict.MISSING, f"{place}: {error.strerror}", "set HOST and PORT")
    return Check("port", Verdict.GOOD, f"{place} is free")


def _taken_port(settings: Settings, place: str) -> Check:
    try:
        held = service_of(settings.data_dir)
    except OSError:  # only root may look
        return Check("port", Verdict.WEAK, f"{place} is taken, perhaps by this service", "PORT=… cubicle serve")
    if held is None or held.rpartition(":")[2] != str(settings.port):
        return Check("port", Verdict.WEAK, f"{place} is taken by another program", "PORT=… cubicle serve")
    if not _healthy(settings):
        found = f"the service of this DATA_DIR has {held}, and does not answer: it may be starting"
        return Check("port", Verdict.WEAK, found, "look into its log")
    return Check("port", Verdict.GOOD, f"the service of this DATA_DIR runs at {held}")


def _healthy(settings: Settings) -> bool:
    """Asked on the machine itself, by a name that the service answers to."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 — compared, not bound
    address = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}/health"
    headers = {"Host": settings.known_hosts[0]} if settings.known_hosts else {}
    try:
        return httpx.get(address, headers=headers, timeout=_HEALTH_SECONDS, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _subject(settings: Settings) -> HostSubject:
    return HostSubject(
        data_dir=settings.data_dir,
        bases=ImageStore(settings.image_dir),
        image=settings.sandbox_image,
        runtime=settings.oci_runtime,
        first_id=SUBUID_START,
        run_dir=RUN_DIR,
        pool_disk_bytes=settings.sandbox_disk_mb * 1024**2,
        min_free_bytes=settings.min_free_mb * 1024**2,
        pids=settings.sandbox_pids,
    )


def _table(found: Sequence[Check]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("check", "state", "found", "to fix it"):
        table.add_column(heading, overflow="fold")
    for check in found:
        state = f"[{_COLOURS[check.verdict]}]{check.verdict.value}[/]"
        table.add_row(check.name, state, escape(check.found), escape(check.fix))
    return table
