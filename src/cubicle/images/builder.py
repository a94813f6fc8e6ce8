"""Makes a sandbox image: a Debian root by mmdebstrap, what the recipe's scripts add to it, owners shifted."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from cubicle.images.store import (
    SUBUID_COUNT,
    SUBUID_START,
    BuildFailed,
    BuiltImage,
    ImageStore,
    Manifest,
    Recipe,
    ToolMissing,
    Variant,
)

RELEASE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
BUILD_SECONDS = 3600
LAST_LINES = 20

MILESTONES = {
    "I: running apt-get update": "reading the package index",
    "I: downloading packages": "downloading packages",
    "I: extracting archives": "unpacking the base system",
    "I: installing essential": "installing the base system",
    "I: installing remaining": "installing packages",
    "cubicle: fetching": "fetching pinned files",
    "cubicle: installing": "adding pinned files",
    "cubicle: adding": "adding our files and the user",
    "cubicle: cleaning": "cleaning up",
}
"""How a line of the log begins, and the step that it announces."""

_SECURITY = re.compile(r"'([^']+)/dists/[a-z]+-security/InRelease'")

OnStep = Callable[[str], None]


def build(store: ImageStore, variant: Variant, on_step: OnStep = lambda step: None) -> BuiltImage:
    """The image of this variant, built if it is not there; `on_step` hears of each step as it begins."""

    def fill(folder: Path) -> Manifest:
        check_host()
        begin = time.monotonic()
        rootfs, log = folder / "rootfs", store.log(store.recipe.digest(variant))
        _bootstrap(store.recipe, variant, rootfs, log, on_step)
        # mmdebstrap empties /run when all hooks are done.
        (rootfs / "run/cubicle").mkdir(mode=0o700)
        packages = _take_packages(rootfs)
        on_step("shifting owners")
        size = shift_owners(rootfs)
        # dpkg leaves the writing to the end; what gets its final name must be on the disk.
        subprocess.run(["sync", "--file-system", str(rootfs)], check=True, timeout=600)
        return Manifest(
            variant=variant,
            architecture=store.recipe.architecture,
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - begin, 1),
            size=size,
            packages=packages,
        )

    return store.make(variant, fill, on_wait=lambda: on_step("waiting for another build of this image"))


def check_host() -> None:
    """Raise ToolMissing when this host cannot build, with the command that fixes it."""
    if os.geteuid() != 0:
        raise ToolMissing("Building a sandbox image needs root; run it again with sudo.")
    tools = {"apt-get": "apt", "mmdebstrap": "mmdebstrap", "unshare": "util-linux"}
    missing = [package for tool, package in tools.items() if shutil.which(tool) is None]
    if not KEYRING.exists():
        missing.append("debian-archive-keyring")
    if missing:
        names = " ".join(missing)
        raise ToolMissing(f"Building a sandbox image needs {names}; run: apt-get install -y {names}")


def shift_owners(rootfs: Path) -> int:
    """Move all owners into the sandboxes' range, drop setuid, setgid and device nodes; the bytes left."""
    size, seen = 0, set[int]()
    for path in _walk(os.fsencode(rootfs)):
        status = os.lstat(path)
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            os.unlink(path)
            continue
        if status.st_ino in seen:  # another name of a file that is done
            continue
        seen.add(status.st_ino)
        size += status.st_blocks * 512
        if status.st_uid < SUBUID_COUNT:
            os.lchown(path, status.st_uid + SUBUID_START, status.st_gid + SUBUID_START)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(path, stat.S_IMODE(status.st_mode) & 0o1777)
    return size


def _walk(folder: bytes) -> Iterator[bytes]:
    yield folder
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            yield os.path.join(parent, name)


def _bootstrap(recipe: Recipe, variant: Variant, rootfs: Path, log: Path, on_step: OnStep) -> None:
    hook = ["sh", str(recipe.folder / "hook.sh"), str(recipe.folder)]
    argv = [
        # When this process dies, so does everything that the build started, and its mounts go with it.
        *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
        *("mmdebstrap", "--mode=root", "--variant=apt", "--format=directory"),
        # apt of an Ubuntu does not trust Debian's keys by itself.
        f"--keyring={KEYRING}",
        f"--include={','.join(recipe.packages(variant))}",
        f"--dpkgopt={recipe.folder / 'root/etc/dpkg/dpkg.cfg.d/cubicle'}",
        "--dpkgopt=force-unsafe-io",
        '--aptopt=APT::Install-Recommends "false"',
        "--aptopt=Acquire::Retries 3",
        f'--customize-hook={shlex.join(hook)} "$1" {shlex.join(recipe.wheels(variant))}',
        *(RELEASE, str(rootfs), *sources(RELEASE)),
    ]
    log.parent.mkdir(parents=True, exist_ok=True)
    last = deque[str](maxlen=LAST_LINES)
    with log.open("w") as file, _started(argv) as process:
        assert process.stdout is not None
        limit = threading.Timer(BUILD_SECONDS, process.kill)
        limit.start()
        try:
            for line in process.stdout:
                file.write(line)
                last.append(line.rstrip())
                for beginning, step in MILESTONES.items():
                    if line.startswith(beginning):
                        on_step(step)
        except BaseException:
            process.kill()
            raise
        finally:
            limit.cancel()
    if process.returncode != 0:
        late = process.returncode < 0
        why = f"took more than {BUILD_SECONDS} s or was killed" if late else f"failed (exit code {process.returncode})"
        raise BuildFailed(f"The build of the sandbox image {variant} {why}; its log is {log}", log, list(last))


def _started(argv: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["env", f"PYTHON={sys.executable}", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def sources(release: str) -> list[str]:
    """The archives that this host uses, for a Debian release; none where it is no Debian: mmdebstrap has a default."""
    main = _archives("indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages")
    archive = next((line[2] for line in main if line[:2] == ["Debian", "Debian"]), "")
    security = next((line[2] for line in main if line[:2] == ["Debian", "Debian-Security"]), "")
    if archive and not security:
        # Its index may never have been fetched; where it is, is known all the same.
        asked = _archives("update", "--print-uris")
        security = next((m[1] for line in asked if (m := _SECURITY.match(line[0]))), "")
    if not archive or not security:
        return []
    suites = [(archive, release), (archive, f"{release}-updates"), (security, f"{release}-security")]
    return [f"deb [signed-by={KEYRING}] {address} {suite} main" for address, suite in suites]


def _archives(*question: str) -> list[list[str]]:
    """What apt says of its archives: a line each, in its fields."""
    asked = subprocess.run(["apt-get", *question], capture_output=True, text=True, timeout=60, check=False)
    return [line.split("|") for line in asked.stdout.splitlines()]


def _take_packages(rootfs: Path) -> dict[str, str]:
    listed = rootfs / "usr/share/cubicle-packages"
    packages = dict(line.split(" ", 1) for line in listed.read_text().splitlines())
    listed.unlink()
    return packages
