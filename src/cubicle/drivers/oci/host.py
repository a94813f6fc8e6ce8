"""What this host has of what the embedded driver needs: seen by trying, not by reading version numbers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import secrets
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cubicle import record
from cubicle.drivers.common.container import RLIMITS, at_most
from cubicle.drivers.common.hidden import SHOWN_SYS, hidden, open_to_all
from cubicle.drivers.oci import mounts, namespaces
from cubicle.drivers.oci.config import BundleSpec, HostFacts, bundle_config, read_only
from cubicle.drivers.oci.runtimes import Runtime, RuntimeFailed, find
from cubicle.machine.errors import Unusable
from cubicle.record import BadRecord
from cubicle.sandbox.driver import SandboxLimits

CGROUPS = Path("/sys/fs/cgroup")
OWN_FOLDERS = {"logs": 0o700, "state": 0o700, "guest": 0o711}
"""Of the runtimes and the guests, beside those of the sandboxes; with their modes."""
BUSY = "busy"
"""The file with the locks of the sandboxes (sandbox_lock.py)."""
OWN_NAMES = frozenset({*OWN_FOLDERS, BUSY})
INSTALL = "apt-get install runc"
_MAX_TRIALS = 100
_TRIAL_LIMITS = SandboxLimits(memory_bytes=256 * 1024**2, cpus=1.0, pids=64)


@dataclass(frozen=True, slots=True)
class HostPath:
    """Where the driver works on this host."""

    stage: Path
    """Mount points and the runtime's state, of this boot only. The sandboxes' root users may pass through it."""
    cgroup: str
    first_id: int
    """The first id that files have on disk."""

    def make(self) -> None:
        self.stage.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.stage.mkdir(mode=0o710, exist_ok=True)
        for name, mode in OWN_FOLDERS.items():
            (self.stage / name).mkdir(exist_ok=True)
            (self.stage / name).chmod(mode)
        for name in set(os.listdir(self.stage)) - OWN_NAMES:
            # Of a sandbox that an older version started: it relied on the folder above.
            with contextlib.suppress(OSError):
                if (self.stage / name).lstat().st_mode & 0o007:
                    os.chown(self.stage / name, 0, self.first_id)
                    (self.stage / name).chmod(0o710)
        self.stage.chmod(0o711)


def facts() -> HostFacts:
    """What a bundle has to know about this host."""
    return HostFacts(
        machine=platform.machine(),
        rlimits={kind: at_most(kind, most) for kind, most in RLIMITS.items()},
        hidden=open_to_all(hidden()),
        shown=tuple(path for path in SHOWN_SYS if os.path.isdir(path)),
        swap_accounting=cgroup_version() == 2 or (CGROUPS / "memory/memory.memsw.limit_in_bytes").exists(),
    )


def cgroup_version() -> int:
    """2 for the one tree, 1 for the old trees (also beside a new one), 0 for none."""
    if (CGROUPS / "cgroup.controllers").exists():
        return 2
    return 1 if (CGROUPS / "memory/memory.limit_in_bytes").exists() else 0


def missing_controllers() -> list[str]:
    """The cgroup controllers that limits need and that are not to be had."""
    needed = ("memory", "cpu", "pids")
    if cgroup_version() == 2:
        there = (CGROUPS / "cgroup.controllers").read_text().split()
        return [name for name in needed if name not in there]
    return [name for name in needed if not (CGROUPS / name).is_dir()]


def has_user_namespaces() -> bool:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/user/max_user_namespaces").read_text()) > 0
    return False


def has_seccomp() -> bool:
    return Path("/proc/sys/kernel/seccomp/actions_avail").exists()


def overlay_complaint() -> str:
    """Why a writable overlay cannot be mounted here; empty if it can."""
    with tempfile.TemporaryDirectory(prefix="cubicle-") as folder:
        parts = [Path(folder, name) for name in ("lower", "upper", "work", "merged")]
        for part in parts:
            part.mkdir()
        try:
            # An overlay cannot lie on an overlay: try it where it will be used, on a disk of its own.
            mounts.mount("tmpfs", Path(folder), "tmpfs")
            try:
                for part in parts:
                    part.mkdir()
                mounts.overlay(*parts)
                mounts.unmount(parts[-1])
            finally:
                mounts.unmount(Path(folder))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def program() -> str:
    """How this program was called: sudo has a search path of its own, and a virtual environment is not on it."""
    called = sys.argv[0]
    return min(called, os.path.relpath(called), key=len) if os.path.basename(called) == "cubicle" else "cubicle"


def require_root() -> None:
    if os.geteuid() != 0:
        raise Unusable(f"The embedded driver needs root: run `sudo {program()} …`, or set DRIVER=docker.")


def require() -> None:
    """Raise Unusable, in one sentence, for the first thing that is missing."""
    require_root()
    if not has_user_namespaces():
        raise Unusable("User namespaces are switched off: run `sysctl -w user.max_user_namespaces=65536`.")
    if complaint := overlay_complaint():
        raise Unusable(f"Overlay file systems do not work here ({complaint}): run `modprobe overlay`.")
    if absent := missing_controllers():
        raise Unusable(f"The cgroup controllers {', '.join(absent)} are missing: mount them, or enable them at boot.")


async def choose(wanted: str, place: HostPath, memory: Path) -> Runtime:
    """The first runtime that really runs a container here; a success is remembered by its version and the kernel's."""
    found = await asyncio.to_thread(find, wanted, place.stage)
    if not found:
        what = f"The OCI runtime {wanted} is not" if wanted else "No OCI runtime (crun, runc or runsc) is"
        raise Unusable(f"{what} installed: run `{INSTALL}`.")
    complaints = []
    for runtime in found:
        complaint = await complaint_of(runtime, place, memory)
        if not complaint:
            return runtime
        complaints.append(f"{runtime.name}: {complaint}")
    raise Unusable(f"No OCI runtime works on this host ({'; '.join(complaints)}): run `cubicle doctor`.")


async def complaint_of(runtime: Runtime, place: HostPath, memory: Path | None) -> str:
    """Why a runtime does not work here, in its own words; empty if it does."""
    called = f"{runtime.path} without {runtime.covered}" if runtime.covered else runtime.path
    key = f"{called} · {runtime.version} · {platform.release()} · {await asyncio.to_thread(_what_is_tried)}"
    seen = await asyncio.to_thread(_remembered, memory)
    if key in seen:
        return ""
    try:
        await trial(runtime, place)
    except (RuntimeFailed, OSError) as error:
        return str(error)
    if memory is not None:
        with contextlib.suppress(OSError):  # then it is tried again the next time
            await asyncio.to_thread(record.write_bytes, memory, json.dumps([*seen[-_MAX_TRIALS:], key]).encode())
    return ""


async def trial(runtime: Runtime, place: HostPath) -> None:
    """Run `true` of the host in a sandbox like any other, but for its root: an empty folder with the host's /usr."""
    name = f"trial-{secrets.token_hex(6)}"
    bundle = place.stage / name
    try:
        await asyncio.to_thread(_make_trial, bundle, place, joins=runtime.hands_over)
        await runtime.try_out(name, bundle)
    finally:
        with contextlib.suppress(RuntimeFailed):
            await runtime.delete(name)
        await asyncio.to_thread(_remove_trial, bundle)


def _remove_trial(bundle: Path) -> None:
    mounts.unmount(bundle / "user")
    shutil.rmtree(bundle, ignore_errors=True)


def _what_is_tried() -> str:
    """A digest of how a sandbox is described: another description is tried anew."""
    described = bundle_config(BundleSpec(Path("/"), "/", 0, _TRIAL_LIMITS, ()), facts())
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _make_trial(bundle: Path, place: HostPath, *, joins: bool) -> None:
    root = bundle / "rootfs"
    root.mkdir(parents=True)
    (root / "usr").mkdir()
    for link in ("bin", "lib", "lib64", "sbin"):
        (root / link).symlink_to(f"usr/{link}")
    for path in (root, root / "usr"):
        os.chown(path, place.first_id, place.first_id)
    mount = read_only(Path("/usr"), "/usr")
    cgroup = f"{place.cgroup}/{bundle.name}"
    namespace = None
    if joins:
        namespace = bundle / "user"
        maker = namespaces.NamespaceMaker()
        try:
            with maker.making(namespaces.for_sandbox(place.first_id, place.first_id)) as made:
                mounts.attach_namespace(made.result()[0], namespace)
        finally:
            maker.close()
    wanted = BundleSpec(root, cgroup, place.first_id, _TRIAL_LIMITS, ("/usr/bin/true",), (mount,), namespace)
    (bundle / "config.json").write_text(json.dumps(bundle_config(wanted, facts())))


def _remembered(memory: Path | None) -> list[str]:
    if memory is None:
        return []
    try:
        found = record.parsed(record.read_bytes(memory))
    except (OSError, BadRecord):
        return []
    return [str(key) for key in found] if isinstance(found, list) else []
