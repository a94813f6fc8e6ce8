"""What `cubicle serve` sets up before its first start: system packages and the sandbox image. It asks first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click

from cubicle.drivers.oci.host import program, require_root
from cubicle.drivers.oci.runtimes import CANDIDATES
from cubicle.images.store import ImageStore, NotBuilt, Variant
from cubicle.machine.errors import Unusable
from cubicle.settings import DriverName, Settings

_PATH = f"{os.defpath}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin"
_APT_SECONDS = 1800
_DISK_SPACE = {Variant.SLIM: "0.4 GB", Variant.STANDARD: "1.3 GB", Variant.FULL: "2.7 GB"}


class Need(StrEnum):
    """What a package is for."""

    RUN = "run"
    BUILD = "build"
    BETTER = "better"
    """Sandboxes run without it, but with less: slower starts, no hard disk limit, no transparent proxy."""


@dataclass(frozen=True, slots=True)
class HostPackage:
    """A Debian package, and the program or file that shows that it is there, whoever installed it."""

    name: str
    stands_for: str
    need: Need

    @property
    def present(self) -> bool:
        names = CANDIDATES if self.need is Need.RUN else (self.stands_for,)
        return any(Path(n).exists() if n.startswith("/") else shutil.which(n, path=_PATH) for n in names)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is missing for these settings."""

    packages: tuple[str, ...] = ()
    variant: Variant | None = None

    def __str__(self) -> str:
        lines = []
        if self.packages:
            lines.append(f"  - system packages, by apt-get: {' '.join(self.packages)}")
        if self.variant:
            lines.append(
                f"  - the sandbox image {self.variant}: built from Debian packages in 2 to 5 minutes, "
                f"{_DISK_SPACE[self.variant]} of disk"
            )
        return "\n".join(lines)


def host_packages() -> tuple[HostPackage, ...]:
    """Every package that serving with the embedded driver can use."""
    lines = Path(__file__).with_name("host_packages.txt").read_text().splitlines()
    rows = (line.split() for line in lines if line and not line.startswith("#"))
    return tuple(HostPackage(name, stands_for, Need(need)) for name, stands_for, need in rows)


def prepare(settings: Settings, *, yes: bool) -> None:
    """Set up what is missing. Asks first, unless `yes`; raises Unusable where nobody can be asked or the answer is no.

    Only the embedded driver keeps its programs and images on this host: for the others there is nothing to do.
    """
    if settings.driver is not DriverName.OCI:
        return
    require_root()
    plan = make_plan(settings, everything=yes)
    if not str(plan):
        return
    if not yes:
        _ask(plan)
    if plan.packages:
        install(plan.packages)
    if plan.variant:
        _build(plan.variant)


def make_plan(settings: Settings, *, everything: bool = False) -> Plan:
    """What is missing. A host that only lacks what makes it better is left as it is, unless `everything` is wanted."""
    variant = missing_variant(settings)
    needs = {Need.RUN, Need.BUILD} if variant else {Need.RUN}
    missing = [package for package in host_packages() if not package.present]
    if settings.oci_runtime:  # which one it is, and where it comes from, is the operator's choice
        missing = [package for package in missing if package.stands_for not in CANDIDATES]
    required = [package for package in missing if package.need in needs]
    wanted = [package for package in missing if package.need is Need.BETTER] if required or everything else []
    return Plan(tuple(package.name for package in required + wanted), variant)


def missing_variant(settings: Settings) -> Variant | None:
    """The variant that the settings name and that is not built."""
    try:
        ImageStore(settings.image_dir).resolve(settings.sandbox_image)
    except NotBuilt:
        return Variant(settings.sandbox_image)
    return None


def install(packages: tuple[str, ...]) -> None:
    """Install packages by apt-get. Raises Unusable when that cannot be done."""
    apt = shutil.which("apt-get", path=_PATH)
    if apt is None:
        raise Unusable(f"This host has no apt-get. Install these yourself, then start again: {' '.join(packages)}")
    click.echo(f"Installing {' '.join(packages)}", err=True)
    options = ["-q", "-y", "-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Use-Pty=0"]
    wanted = [apt, *options, "install", "--no-install-recommends", *packages]
    # Lists that are old or were never fetched do not name what the archive holds: fetch them, and try once more.
    if not (_succeeds(wanted) or (_succeeds([apt, *options, "update"]) and _succeeds(wanted))):
        raise Unusable(f"apt-get could not install {' '.join(packages)}: its messages are above.")


def _succeeds(argv: list[str]) -> bool:
    # A session of its own: Ctrl-C in the midst of dpkg would leave packages half installed.
    process = subprocess.Popen(
        ["env", "DEBIAN_FRONTEND=noninteractive", *argv],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )
    try:
        return process.wait(_APT_SECONDS) == 0
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait(_APT_SECONDS)
        return False
    except KeyboardInterrupt:
        click.echo("apt-get is at work; this ends when it has finished.", err=True)
        process.wait(_APT_SECONDS)
        raise


def _build(variant: Variant) -> None:
    from cubicle.cli.image import build

    click.get_current_context().invoke(build, variant=variant.value)


def _ask(plan: Plan) -> None:
    what = f"Cubicle needs this on the host before it can serve:\n{plan}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Unusable(
            f"{what}\nNobody can be asked here: there is no terminal. To set it up, run: {program()} serve --yes"
        )
    click.echo(what, err=True)
    if not click.confirm("Set it up now?", default=True, err=True):
        raise Unusable(f"Nothing was changed. `{program()} doctor` lists what is missing, and how to fix it.")
