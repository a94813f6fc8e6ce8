"""What the driver finds of its sandboxes on disk, damaged or not."""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass

from cubicle.drivers.common.disk_usage import used_bytes
from cubicle.drivers.oci import freezer
from cubicle.drivers.oci.assembly import Assembly
from cubicle.drivers.oci.records import OciHome, OciRecords
from cubicle.record import BadRecord
from cubicle.sandbox.driver import SandboxSeen, State

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiskScan:
    """One look at all of them. Blocking; runs in threads."""

    records: OciRecords
    assembly: Assembly
    runtime: str
    starting: Set[str]

    def all(self) -> list[SandboxSeen]:
        owned = self.records.owned()
        return [seen for home in self.records.homes() if (seen := self._see(home, owned)) is not None]

    def _see(self, home: OciHome, owned: dict[str, str]) -> SandboxSeen | None:
        """One sandbox; None if it is not known whose it is: then it is nobody's to use or to remove."""
        try:
            owner = self.records.owner_of(home, owned)
            meta = home.meta()
        except (BadRecord, OSError) as error:
            if home.name in owned:
                return self._damaged(home, owned[home.name], error)
            log.warning("sandbox %s is left alone: %s", home.name, error)
            return None
        run = home.run()
        state, reason = State.STOPPED, ""
        if home.name in self.starting:
            state = State.STARTING
        elif run is not None and run.process.alive:
            state = State.RUNNING
        elif run is not None and run.process.this_boot:
            state, reason = State.FAILED, self.assembly.last_words(home)
        elif reason := home.failure():
            state = State.FAILED
        current = True
        if owner is None and state is State.RUNNING and run:
            current = self.assembly.is_like_new(home, meta, run, self.runtime)
        frozen = state is State.RUNNING and freezer.is_frozen(f"{self.assembly.place.cgroup}/{home.name}")
        return SandboxSeen(home.name, owner, state, reason, meta.image, current, frozen)

    def _damaged(self, home: OciHome, owner: str, error: Exception) -> SandboxSeen:
        """The next start of the sandbox repairs what can be repaired."""
        reason = "" if isinstance(error, FileNotFoundError) else f"its record cannot be used: {error}"
        return SandboxSeen(
            home.name, owner, State.FAILED if reason else State.STOPPED, reason, self.assembly.base.digest
        )


def is_up(home: OciHome) -> bool:
    run = home.run()
    return run is not None and run.process.alive


def over_limit(home: OciHome) -> int:
    """The disk limit that a running sandbox has passed; 0 if it has not."""
    tree = home.path / "tree"
    if not tree.exists() or not is_up(home):
        return 0
    try:
        meta = home.meta()
    except BadRecord:
        return 0  # it gets a new record when it starts again
    return meta.disk_bytes if used_bytes(tree, meta.disk_bytes) > meta.disk_bytes else 0
