"""What the embedded driver needs of a host, one check each: a record of what was found and what fixes it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from cubicle.drivers.common.checks import Check, Verdict
from cubicle.drivers.oci import cleaning, disk, host, loops, runtimes
from cubicle.drivers.oci.assembly import ImageBases
from cubicle.drivers.oci.disk import DiskMode
from cubicle.drivers.oci.id_ranges import IdRanges
from cubicle.drivers.oci.identity import KernelIdentities
from cubicle.drivers.oci.namespaces import NamespaceMaker
from cubicle.machine.errors import NoSpace, SandboxError
from cubicle.sandbox.driver import SandboxLimits
from cubicle.sandbox.free_space import FreeSpace

_MAX_SHOWN = 3
_SANDBOXES = 16
"""For how many of them at their limit the host should have open files."""


@dataclass(frozen=True, slots=True)
class HostSubject:
    """What is checked: the settings that the embedded driver goes by."""

    data_dir: Path
    bases: ImageBases
    image: str
    runtime: str
    first_id: int
    run_dir: Path
    pool_disk_bytes: int
    min_free_bytes: int = 0
    pids: int = SandboxLimits().pids


def root(subject: HostSubject) -> Check:
    if os.geteuid() == 0:
        return Check("root", Verdict.GOOD, "running as root")
    return Check("root", Verdict.MISSING, f"running as user {os.geteuid()}", f"sudo {host.program()} doctor")


def user_namespaces(subject: HostSubject) -> Check:
    if host.has_user_namespaces():
        return Check("user namespaces", Verdict.GOOD, "on")
    return Check("user namespaces", Verdict.MISSING, "off", "sysctl -w user.max_user_namespaces=65536")


def seccomp(subject: HostSubject) -> Check:
    if host.has_seccomp():
        return Check("seccomp", Verdict.GOOD, "on")
    return Check("seccomp", Verdict.MISSING, "not in this kernel", "boot a kernel with CONFIG_SECCOMP_FILTER=y")


def overlay(subject: HostSubject) -> Check:
    if os.geteuid() != 0:
        return _needs_root("overlay file system")
    if complaint := host.overlay_complaint():
        return Check("overlay file system", Verdict.MISSING, complaint, "modprobe overlay")
    return Check("overlay file system", Verdict.GOOD, "mounted and unmounted one")


def cgroups(subject: HostSubject) -> Check:
    version = host.cgroup_version()
    if not version:
        return Check("cgroups", Verdict.MISSING, "not mounted", "mount -t cgroup2 none /sys/fs/cgroup")
    if absent := host.missing_controllers():
        fix = "boot with cgroup_enable=memory" if "memory" in absent else "enable them in the kernel"
        return Check("cgroups", Verdict.MISSING, f"version {version}, without {', '.join(absent)}", fix)
    return Check("cgroups", Verdict.GOOD, f"version {version}, with memory, cpu and pids")


async def runtime(subject: HostSubject) -> Check:
    """A trial run, always anew: what is remembered is not what is checked here."""
    if os.geteuid() != 0:
        return _needs_root("OCI runtime")
    name = f"doctor-{secrets.token_hex(4)}"
    place = host.HostPath(subject.run_dir / name, f"/cubicle/{name}", subject.first_id)
    complaints: list[str] = []
    try:
        await asyncio.to_thread(place.make)
        found = await asyncio.to_thread(runtimes.find, subject.runtime, place.stage)
        for candidate in found:
            complaint = await host.complaint_of(candidate, place, None)
            if not complaint:
                failed = f" ({'; '.join(complaints)})" if complaints else ""
                return Check("OCI runtime", Verdict.GOOD, f"{candidate.version} ran a trial container{failed}")
            complaints.append(f"{candidate.name} does not work: {complaint}")
    finally:
        await asyncio.to_thread(cleaning.leave, place)
    said = "; ".join(complaints) or f"{subject.runtime or 'none'} not installed"
    return Check("OCI runtime", Verdict.MISSING, said, host.INSTALL)


def disk_limit(subject: HostSubject) -> Check:
    if os.geteuid() != 0:
        return _needs_root("disk limit")
    try:
        mode = disk.probe(_existing(subject.data_dir))
    except NoSpace as error:
        return Check("disk limit", Verdict.WEAK, f"could not be tried: {error}", "see disk space below")
    match mode:
        case DiskMode.QUOTA:
            return Check("disk limit", Verdict.GOOD, "project quota")
        case DiskMode.IMAGE:
            return Check("disk limit", Verdict.GOOD, "a sparse ext4 image for each sandbox, on a loop device")
        case _:
            return Check(
                "disk limit",
                Verdict.WEAK,
                "only a watchdog: a sandbox can pass its limit for some seconds",
                "apt-get install e2fsprogs && modprobe loop",
            )


def own_ids(subject: HostSubject) -> Check:
    """A trial of what gives each sandbox a range of user ids of its own."""
    if os.geteuid() != 0:
        return _needs_root("own user ids")
    folder = _existing(subject.data_dir)
    identities = KernelIdentities(IdRanges(subject.run_dir / "ids"), NamespaceMaker(), subject.first_id)
    try:
        base = subject.bases.resolve(subject.image)
        complaint = identities.complaint(base.rootfs, disk.probe(folder), folder)
    except SandboxError:
        return Check("own user ids", Verdict.WEAK, "could not be tried without an image and space", "see below")
    finally:
        identities.maker.close()
    if not complaint:
        return Check("own user ids", Verdict.GOOD, "each sandbox has a range of its own")
    found = f"all sandboxes share one range ({complaint}): what the kernel counts by user is shared between them"
    fix = "boot Linux 5.19 or newer, with DATA_DIR and IMAGE_DIR on ext4, XFS or btrfs; or OCI_RUNTIME=runsc"
    return Check("own user ids", Verdict.WEAK, found, fix)


def open_files(subject: HostSubject) -> Check:
    """Of open files the kernel keeps one count for the whole host, and no limit for a group of processes."""
    most = int(Path("/proc/sys/fs/file-max").read_text())
    one = subject.pids * host.facts().rlimits["RLIMIT_NOFILE"]
    if one < most:
        return Check("open files", Verdict.GOOD, f"one sandbox can have {one:,} of the host's {most:,}")
    found = f"one sandbox with {subject.pids} processes could have all {most:,} of the host, within its memory"
    return Check("open files", Verdict.WEAK, found, f"sysctl -w fs.file-max={one * _SANDBOXES}")


def loop_devices(subject: HostSubject) -> Check:
    if loops.CONTROL.exists():
        used = len(list(Path("/sys/block").glob("loop*/loop/backing_file")))
        return Check("loop devices", Verdict.GOOD, f"{used} in use, more on demand")
    return Check("loop devices", Verdict.WEAK, "no /dev/loop-control", "modprobe loop")


def image(subject: HostSubject) -> Check:
    try:
        base = subject.bases.resolve(subject.image)
    except SandboxError as error:
        return Check("sandbox image", Verdict.MISSING, str(error), f"cubicle image build {subject.image}")
    if not base.has_terminal:
        found = f"{subject.image}, {base.digest[:12]}, built without the terminal server (ttyd)"
        again = f"cubicle image rm {base.digest[:12]} && cubicle image build {subject.image}"
        return Check("sandbox image", Verdict.WEAK, found, again)
    return Check("sandbox image", Verdict.GOOD, f"{subject.image}, {base.digest[:12]}")


def disk_space(subject: HostSubject) -> Check:
    usage = FreeSpace(subject.data_dir, subject.min_free_bytes).usage()
    found = f"{usage.free / 1024**3:.1f} GiB free for DATA_DIR"
    if not usage.enough:
        floor = f"{usage.floor // 1024**2} MiB" if usage.inodes_left else "some inodes"
        fix = "free some space (`cubicle rm`), or set DATA_DIR to a larger disk"
        return Check("disk space", Verdict.MISSING, f"{found}: {floor} are kept free, so no sandbox is started", fix)
    if usage.free < subject.pool_disk_bytes:
        return Check("disk space", Verdict.WEAK, f"{found}: less than one sandbox may fill", "set DATA_DIR elsewhere")
    return Check("disk space", Verdict.GOOD, found)


def repaired_disks(subject: HostSubject) -> Check:
    """Copies that were made before a repair: they take space, and something happened to the host."""
    copies = [*disk.damaged_copies(subject.data_dir / "sandboxes")]
    if not copies:
        return Check("disk repairs", Verdict.GOOD, "none lately")
    shown = ", ".join(str(copy) for copy in copies[:_MAX_SHOWN])
    more = f" and {len(copies) - _MAX_SHOWN} more" if len(copies) > _MAX_SHOWN else ""
    return Check(
        "disk repairs", Verdict.WEAK, f"copies of damaged disks: {shown}{more}", "remove them when all is well"
    )


CHECKS: tuple[Callable[[HostSubject], Check | Awaitable[Check]], ...] = (
    root,
    user_namespaces,
    seccomp,
    overlay,
    cgroups,
    runtime,
    disk_limit,
    loop_devices,
    own_ids,
    open_files,
    image,
    disk_space,
    repaired_disks,
)


async def run(subject: HostSubject) -> list[Check]:
    """All of them, in order; a check that breaks says so and does not keep the others from running."""
    found = []
    for check in CHECKS:
        try:
            answer = await asyncio.to_thread(check, subject)
            found.append(answer if isinstance(answer, Check) else await answer)
        except OSError as error:
            name = getattr(check, "__name__", "check").replace("_", " ")
            found.append(
                Check(name, Verdict.MISSING, f"could not be checked: {error.strerror}", f"sudo {host.program()} doctor")
            )
    return found


def _needs_root(name: str) -> Check:
    return Check(name, Verdict.MISSING, "can only be tried as root", f"sudo {host.program()} doctor")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    while not folder.exists():
        folder = folder.parent
    return folder
