"""What sandboxes and programs leave on a host: mounts, loop devices, cgroups, processes, folders of the driver.

Everything is found by whose it is, a folder or a driver's place, so that runs side by side do not see each other.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from cubicle.drivers.common.instance import instance_of
from cubicle.drivers.oci.driver import RUN_DIR

_CGROUPS = Path("/sys/fs/cgroup")
_OCTAL = re.compile(r"\\([0-7]{3})")


def of_run(base: Path) -> list[str]:
    """All that is left of a test run, in words; empty when it took everything with it."""
    places = {instance_of(data): data for data in data_folders(base)}
    found = [f"mount {target}" for target in mounts(base)]
    found += [f"loop device of {image}" for image in loop_devices(base)]
    for instance, data in places.items():
        stage = RUN_DIR / instance
        found += [f"mount {target} ({data})" for target in mounts(stage)]
        found += [f"cgroup {path} ({data})" for path in cgroups(f"cubicle/{instance}")]
        found += [f"folder {stage} ({data})"] if stage.exists() else []
    found += [f"process {line}" for line in processes(str(base), *(f"/cubicle/{instance}" for instance in places))]
    return found


def data_folders(base: Path) -> list[Path]:
    """Every DATA_DIR of the embedded driver under a folder."""
    found = []
    for folder, names, _ in os.walk(base):
        if "sandboxes" in names and "owners" in names:
            found.append(Path(folder))
            names.clear()
    return found


def mounts(folder: Path) -> list[str]:
    """Mount points under a folder, or at it."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:
        targets = [_OCTAL.sub(lambda m: chr(int(m[1], 8)), line.split(" ")[1]) for line in table]
    return [target for target in targets if Path(target).is_relative_to(folder)]


def loop_devices(folder: Path) -> list[str]:
    """Images under a folder that a loop device still holds."""
    backing = (_read(device).strip() for device in Path("/sys/block").glob("loop*/loop/backing_file"))
    return [image for image in backing if image.startswith(f"{folder}/")]


def cgroups(path: str) -> list[str]:
    """A cgroup and all below it, in every tree of the old controllers and in the unified one."""
    tail = path.lstrip("/")
    roots = [_CGROUPS, *(entry for entry in _CGROUPS.iterdir() if entry.is_dir())]
    return [folder for root in roots for folder, _, _ in os.walk(root / tail)]


def processes(*marks: str) -> list[str]:
    """Processes that bear one of the marks: in their cgroup, arguments, environment, working folder or root.

    A sandbox's processes have a clean environment, but they are in its cgroup and their root is on its disk. Who started
    this process may well bear the mark, and is not meant.
    """
    above = _above()
    others = (entry for entry in _numbers() if int(entry.name) not in above)
    return [_line(entry) for entry in others if any(mark in text for text in _traits(entry) for mark in marks)]


def end_processes(*marks: str) -> None:
    """Kill the processes that bear one of the marks."""
    for line in processes(*marks):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.partition(":")[0]), signal.SIGKILL)


def children() -> list[str]:
    """The children of this process, the dead that nobody fetched included."""
    return [_line(entry) for entry in _numbers() if _parent(int(entry.name)) == os.getpid()]


def _above() -> set[int]:
    """This process and its ancestors."""
    found, pid = set(), os.getpid()
    while pid:
        found.add(pid)
        pid = _parent(pid)
    return found


def _parent(pid: int) -> int:
    stat = _read(Path(f"/proc/{pid}/stat"))
    return int(stat[stat.rindex(")") + 2 :].split()[1]) if stat else 0


def _numbers() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _traits(entry: Path) -> Iterator[str]:
    for name in ("cgroup", "cmdline", "environ"):
        yield _read(entry / name)
    with contextlib.suppress(OSError):
        yield os.readlink(entry / "cwd")
    yield from (line for line in _read(entry / "mounts").splitlines() if line.split(" ")[1] == "/")


def _line(entry: Path) -> str:
    said = _read(entry / "cmdline").replace("\0", " ").strip()[:200]
    return f"{entry.name}: {said or _read(entry / 'comm').strip()}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
