"""When isolation is checked, where the outcome is kept, and what follows from it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import platform
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from cubicle import __version__, durable, record
from cubicle.guest import bundle
from cubicle.isolation.runner import Report
from cubicle.machine.errors import NoSpace, SandboxError, Unusable
from cubicle.record import BadRecord
from cubicle.settings import DriverName, RequireIsolation, Settings

log = logging.getLogger(__name__)

_KEPT_SECONDS = 7 * 86400
_MAX_SIZE = 4 * 1024**2
_PATH = f"{os.defpath}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin"
"""Where the driver looks for runtimes, whatever the service's own PATH is."""


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """A report, and when it was made (seconds of the epoch)."""

    report: Report
    at: float


def file_of(settings: Settings) -> Path:
    """Where the outcome is kept for just these settings, this kernel, this image and this guest: what is proved belongs
    to the machine, so it lies beside the images, which all services share."""
    parts = (
        __version__,
        settings.driver.value,
        *(settings.oci_runtime, _runtimes(settings.oci_runtime)),
        settings.docker_runtime,
        settings.docker_host,
        settings.sandbox_image,
        *(settings.kubernetes_image, settings.kubernetes_isolation.value, settings.kubernetes_namespace),
        *(str(settings.kubeconfig), str(settings.kubernetes_pod_template)),
        platform.release(),
        bundle.digest(bundle.build()),
    )
    return settings.image_dir / "proofs" / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}.json"


def _runtimes(wanted: str) -> tuple[tuple[str, int], ...]:
    """What may run sandboxes here: another one, or another version, need not isolate them as well."""
    names = (wanted,) if wanted else ("crun", "runc", "runsc")
    paths = filter(None, (shutil.which(name, path=_PATH) for name in names))
    return tuple((path, os.stat(path).st_mtime_ns) for path in paths)


def kept(file: Path) -> IsolationReport | None:
    """What was found the last time, if that is not long ago."""
    try:
        told = record.read(file, _MAX_SIZE)
        proof = IsolationReport(Report.heard(dict(told.fields("report").values)), told.number("at"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadRecord):
        return None
    return proof if 0 <= time.time() - proof.at < _KEPT_SECONDS else None


def keep(file: Path, proof: IsolationReport) -> None:
    """For the next start. A machine whose cache cannot be written proves each time anew."""
    try:
        durable.make_folder(file.parent, mode=0o755)
        record.write(file, {"at": proof.at, "report": proof.report.told()}, mode=0o644)
    except OSError as error:
        log.warning("the isolation report could not be kept: %s", error.strerror)


def demanded(settings: Settings) -> RequireIsolation:
    """What the settings ask for: left to itself, a driver that promises isolation must have it."""
    if settings.require_walls is not RequireIsolation.AUTO:
        return settings.require_walls
    return RequireIsolation.WARN if settings.driver is DriverName.MEMORY else RequireIsolation.ENFORCE


class StartupCheck:
    """Knows whether the isolation holds, and keeps the service from starting where it must and does not."""

    def __init__(
        self,
        settings: Settings,
        prove: Callable[[], Awaitable[Report]],
        *,
        isolates: bool = True,
        only_looks: bool = False,
    ) -> None:
        """`only_looks`: another process of the service has tried it, and only its report is read."""
        self._settings = settings
        self._isolates = isolates
        self._prove = prove
        self.proof: IsolationReport | None = None
        self.complaint = ""
        """What does not hold, by the last check."""
        self._only_looks = only_looks
        self.postponed = False
        """Whether the disk was too full to try them: `check` has to be called again."""

    async def check(self) -> None:
        """Check the isolation, unless that was done lately. Raises Unusable when a layer that must hold is missing."""
        if not self._isolates:
            log.warning("DRIVER=memory has no isolation: it is for tests")
            return
        file = await asyncio.to_thread(file_of, self._settings)
        found = await asyncio.to_thread(kept, file)
        if self._only_looks:
            self.proof = found
            return
        if found is None or found.report.missing or found.report.unchecked:
            try:
                found = IsolationReport(await self._prove(), time.time())
            except NoSpace as error:
                if not self.postponed:
                    log.error("the isolation is not checked yet: %s", error)
                self.postponed = True
                return
            except SandboxError as error:
                self._complain(f"The isolation could not be checked: {error}")
                return
            await asyncio.to_thread(keep, file, found)
        self.proof, self.postponed = found, False
        if found.report.missing:
            names = sorted({finding.layer for finding in found.report.missing})
            self._complain(f"These layers of the sandboxes' isolation do not hold: {', '.join(names)}.")
        if found.report.unchecked:
            names = [f"{finding.attempt} ({finding.layer})" for finding in found.report.unchecked]
            log.warning("isolation not checked, as the engine is not on this host: %s", ", ".join(names))
        log.info("isolation", extra={"strength": found.report.strength.value, "attempts": len(found.report.findings)})

    def _complain(self, what: str) -> None:
        self.complaint = what
        if demanded(self._settings) is RequireIsolation.ENFORCE:
            raise Unusable(f"{what} Run `cubicle doctor --prove`, or set REQUIRE_WALLS=warn to serve all the same.")
        log.warning("%s Run `cubicle doctor --prove`.", what)
