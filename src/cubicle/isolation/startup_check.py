"""When the walls are tried, where the outcome is kept, and what follows from it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from cubicle import __version__, durable, record
from cubicle.guest import bundle
from cubicle.isolation.runner import Report
from cubicle.machine.errors import NoSpace, SandboxError, Unusable
from cubicle.record import BadRecord
from cubicle.settings import DriverName, RequireWalls, Settings

log = logging.getLogger(__name__)

_KEPT_SECONDS = 7 * 86400
_LARGEST = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class Proof:
    """A report, and when it was made (seconds of the epoch)."""

    report: Report
    at: float


def file_of(settings: Settings) -> Path:
    """Where the outcome is kept for just these settings, this kernel, this image and this guest: what is proved belongs
    to the machine, so it lies beside the images, which all services share."""
    parts = (
        __version__,
        settings.driver.value,
        settings.oci_runtime,
        settings.docker_runtime,
        settings.docker_host,
        settings.sandbox_image,
        platform.release(),
        bundle.digest(bundle.build()),
    )
    return settings.image_dir / "proofs" / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}.json"


def kept(file: Path) -> Proof | None:
    """What was found the last time, if that is not long ago."""
    try:
        told = record.read(file, _LARGEST)
        proof = Proof(Report.heard(dict(told.fields("report").values)), told.number("at"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadRecord):
        return None
    return proof if 0 <= time.time() - proof.at < _KEPT_SECONDS else None


def keep(file: Path, proof: Proof) -> None:
    """For the next start. A machine whose cache cannot be written proves each time anew."""
    try:
        durable.make_folder(file.parent, mode=0o755)
        record.write(file, {"at": proof.at, "report": proof.report.told()}, mode=0o644)
    except OSError as error:
        log.warning("the proof of the walls could not be kept: %s", error.strerror)


def demanded(settings: Settings) -> RequireWalls:
    """What the settings ask for: left to itself, a driver that promises walls must have them."""
    if settings.require_walls is not RequireWalls.AUTO:
        return settings.require_walls
    return RequireWalls.WARN if settings.driver is DriverName.MEMORY else RequireWalls.ENFORCE


class Warden:
    """Knows whether the walls stand, and keeps the service from starting where they must and do not."""

    def __init__(self, settings: Settings, prove: Callable[[], Awaitable[Report]], *, isolates: bool = True) -> None:
        self._settings = settings
        self._isolates = isolates
        self._prove = prove
        self.proof: Proof | None = None
        self.postponed = False
        """Whether the disk was too full to try them: `check` has to be called again."""

    async def check(self) -> None:
        """Try the walls, unless that was done lately. Raises Unusable when one that must stand is missing."""
        if not self._isolates:
            log.warning("DRIVER=memory has no walls: it is for tests")
            return
        file = await asyncio.to_thread(file_of, self._settings)
        found = await asyncio.to_thread(kept, file)
        if found is None or found.report.missing or found.report.unchecked:
            try:
                found = Proof(await self._prove(), time.time())
            except NoSpace as error:
                if not self.postponed:
                    log.error("the walls are not tried yet: %s", error)
                self.postponed = True
                return
            except SandboxError as error:
                self._complain(f"The walls could not be tried: {error}")
                return
            await asyncio.to_thread(keep, file, found)
        self.proof, self.postponed = found, False
        if found.report.missing:
            names = sorted({finding.wall for finding in found.report.missing})
            self._complain(f"These walls of the sandboxes do not hold: {', '.join(names)}.")
        if found.report.unchecked:
            names = [f"{finding.attempt} ({finding.wall})" for finding in found.report.unchecked]
            log.warning("isolation not checked, as the engine is not on this host: %s", ", ".join(names))
        log.info("walls", extra={"strength": found.report.strength.value, "attempts": len(found.report.findings)})

    def _complain(self, what: str) -> None:
        if demanded(self._settings) is RequireWalls.ENFORCE:
            raise Unusable(f"{what} Run `cubicle doctor --prove`, or set REQUIRE_WALLS=warn to serve all the same.")
        log.warning("%s Run `cubicle doctor --prove`.", what)
