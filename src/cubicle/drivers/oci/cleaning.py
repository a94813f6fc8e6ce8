"""After a crash: ends what is left over of sandboxes that are not up, and has their records repaired."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from pathlib import Path

from cubicle.drivers.oci import mounts, repair
from cubicle.drivers.oci.assembly import Assembly
from cubicle.drivers.oci.host import CGROUPS, OWN_NAMES, HostPath
from cubicle.drivers.oci.records import OciHome, OciRun
from cubicle.drivers.oci.runtimes import Runtime, RuntimeFailed, find

log = logging.getLogger(__name__)


async def clean(assembly: Assembly) -> None:
    """Leave only sandboxes that are whole: up, or down with nothing of them mounted."""
    names = await asyncio.to_thread(_left_over, assembly)
    if names:
        for runtime in await asyncio.to_thread(used_runtimes, assembly.place.stage):
            for name in names:
                with contextlib.suppress(RuntimeFailed):
                    await runtime.delete(name)
    await asyncio.to_thread(_sweep, assembly, names)


def leave(place: HostPath) -> None:
    """Remove the driver's own folders of this boot, if no sandbox is up."""
    if place.stage.exists() and not set(os.listdir(place.stage)) - OWN_NAMES:
        shutil.rmtree(place.stage, ignore_errors=True)
        for cgroup in _cgroups(place.cgroup):
            with contextlib.suppress(OSError):
                cgroup.rmdir()


def used_runtimes(stage: Path, name: str | None = None) -> list[Runtime]:
    """Those that have state here, or of this sandbox: the setting may have changed since."""
    used = [folder for folder in (stage / "state").iterdir() if name is None or (folder / name).exists()]
    return [runtime for folder in used for runtime in find(folder.name, stage)]


def runtimes_of(stage: Path, home: OciHome, run: OciRun | None) -> list[Runtime]:
    """Those that may have started a sandbox; without a record, whoever has state of it; of a damaged one, all."""
    if run is not None:
        return find(run.runtime, stage)
    return used_runtimes(stage, None if home.has_run() else home.name)


def _left_over(assembly: Assembly) -> set[str]:
    """Names of which something is there, but no sandbox that is up."""
    up, known = set(), set()
    unsettled = repair.unsettled(assembly.records)
    for home in assembly.records.homes():
        run = home.run()
        # One that died is as good as up: its remains say why, until it is started or stopped.
        if run is not None and run.process.this_boot and home.name not in unsettled:
            up.add(home.name)
        else:
            known.add(home.name)
    stage = assembly.place.stage
    staged = {entry for entry in os.listdir(stage) if entry not in OWN_NAMES}
    staged |= {entry.name for entry in (stage / "state").glob("*/*") if entry.is_dir()}
    return (known | staged) - up


def _sweep(assembly: Assembly, names: set[str]) -> None:
    for name in sorted(names):
        _remove_stage(assembly.place.stage / name)
        for state in (assembly.place.stage / "state").glob(f"*/{name}"):
            shutil.rmtree(state, ignore_errors=True)
        for cgroup in _cgroups(f"{assembly.place.cgroup}/{name}"):
            with contextlib.suppress(OSError):
                cgroup.rmdir()
    for home in assembly.records.homes():
        if home.name in names and (home.has_run() or os.path.lexists(home.socket)):
            try:
                home.forget_run()
            except OSError as error:
                log.warning("the run of sandbox %s cannot be forgotten: %s", home.name, error.strerror)
    _sweep_ids(assembly, names)
    repair.repair(assembly.records, assembly.today)


def _remove_stage(stage: Path) -> None:
    """What stays mounted in there, against all that the kernel said, can be a disk with somebody's files."""
    for target in mounts.below(stage):
        mounts.unmount(target)
    if mounts.below(stage):
        log.error("what is left of sandbox %s is still mounted, and stays", stage.name)
    else:
        shutil.rmtree(stage, ignore_errors=True)


def _sweep_ids(assembly: Assembly, left_over: set[str]) -> None:
    """Ranges of ids belong to what is up, and to nothing else of this DATA_DIR."""
    up = {}
    for home in assembly.records.homes():
        if home.name not in left_over and (run := home.run()) is not None:
            up[home.name] = run.first_id
    assembly.identities.ranges.sweep(assembly.records.sandboxes, up)


def _cgroups(path: str) -> list[Path]:
    """A cgroup in every tree that has it."""
    tail = path.lstrip("/")
    trees = [CGROUPS, *(entry for entry in CGROUPS.iterdir() if entry.is_dir())]
    return [tree / tail for tree in trees if (tree / tail).is_dir()]
