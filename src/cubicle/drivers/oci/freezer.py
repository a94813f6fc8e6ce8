"""The freezer of cgroups: a frozen sandbox neither runs nor, with cgroups of version 1, dies of a signal."""

from __future__ import annotations

import contextlib

from cubicle.drivers.oci.host import CGROUPS

_SWITCHES = (
    (CGROUPS, "cgroup.freeze", "0"),
    (CGROUPS / "unified", "cgroup.freeze", "0"),
    (CGROUPS / "freezer", "freezer.state", "THAWED"),
)


def thaw(cgroup: str) -> bool:
    """Let the processes of a cgroup run on; whether they were frozen."""
    frozen = False
    for tree, switch, running in _SWITCHES:
        with contextlib.suppress(OSError):
            path = tree / cgroup.lstrip("/") / switch
            if path.read_text().strip() != running:
                path.write_text(running)
                frozen = True
    return frozen
