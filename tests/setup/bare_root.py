"""A bare machine: the root of a fresh Debian or Ubuntu in a mount and process namespace of its own.

It has what a person needs to begin (git, make, Python, certificates) and nothing else. It reaches the package registries
as this machine does: by the archives, proxies and authorities that are set up here, which are read when the test runs.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cubicle.drivers.common.instance import instance_of
from tests.support import remains

ROOT = Path(__file__).parents[2]
PACKAGES = "ca-certificates,git,make,python3"
BUILD_SECONDS = 600
END_SECONDS = 120

# pivot_root, so that no path of this machine is left in sight; cgroups and loop devices are the kernel's, and shared.
ENTER = """
set -eu
cd "$1"
mount --bind . .
cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p old
pivot_root . old
cd /
shift
exec python3 -c "$LEAVE_OLD_ROOT" "$@"
"""

# A bare root has no umount.
LEAVE_OLD_ROOT = """
import ctypes, os, sys
detach = 2
if ctypes.CDLL(None, use_errno=True).umount2(b"/old", detach) != 0:
    sys.exit(f"umount /old: {os.strerror(ctypes.get_errno())}")
os.rmdir("/old")
del os.environ["LEAVE_OLD_ROOT"]
os.execvp(sys.argv[1], sys.argv[1:])
"""

# Runs as the first process inside. Who started it holds the other end of its standard input: whatever becomes of the
# test, the service ends and its sandboxes go.
SERVE = """
cd /srv/cubicle
( {start} ) </dev/null >/srv/serve.log 2>&1 &
service=$!
read -r _ || true
kill -TERM $service
wait $service
exec {program} rm --all --now
"""


@dataclass
class BareRoot:
    """The root of one distribution, and what starts the service in it."""

    folder: Path
    suite: str
    sources: list[str]
    components: str = "main"
    keyring: str = "/usr/share/keyrings/debian-archive-keyring.gpg"
    packages: str = PACKAGES
    start: str = "exec make serve"
    program: str = "/srv/cubicle/.venv/bin/cubicle"
    environment: dict[str, str] = field(default_factory=dict)
    # The cgroups of a service are named after its DATA_DIR, and this root shares them with the whole machine.
    data_dir: str = field(default_factory=lambda: f"/srv/data-{secrets.token_hex(8)}")

    @property
    def instance(self) -> str:
        return instance_of(Path(self.data_dir))

    def log(self) -> str:
        path = self.folder / "srv/serve.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def make(self) -> None:
        """Unpack the distribution, and put this checkout and the machine's registry settings there."""
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "mmdebstrap", "--quiet"]
        argv += ["--mode=root", "--variant=apt", "--format=directory", f"--include={self.packages}"]
        argv += [f"--components={self.components}", f"--keyring={self.keyring}"]
        argv += ['--aptopt=APT::Install-Recommends "false"', "--dpkgopt=force-unsafe-io", "--aptopt=Acquire::Retries 3"]
        done = subprocess.run(
            [*argv, self.suite, str(self.folder), *self.sources],
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"[-4000:]
        self.folder.chmod(0o755)
        self._carry_settings()
        copy_checkout(self.folder / "srv/cubicle")

    def _carry_settings(self) -> None:
        for name in ("etc/hosts", "etc/resolv.conf"):
            shutil.copyfile(Path("/") / name, self.folder / name)
        (self.folder / "etc/apt/apt.conf.d/99machine").write_text(apt_settings())
        authorities = Path("/usr/local/share/ca-certificates")
        if authorities.is_dir():
            shutil.copytree(authorities, self.folder / "usr/local/share/ca-certificates", dirs_exist_ok=True)
            subprocess.run(
                ["chroot", str(self.folder), "update-ca-certificates"], check=True, capture_output=True, timeout=120
            )

    @contextlib.contextmanager
    def serving(self, port: int) -> Iterator[subprocess.Popen[str]]:
        """`make serve` under way; at the end of the block it is asked to end, and everything of it is gone."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        environment |= {"PORT": str(port), "DATA_DIR": self.data_dir, "SANDBOX_IMAGE": "slim"}
        environment |= registry_settings() | self.environment | {"LEAVE_OLD_ROOT": LEAVE_OLD_ROOT}
        argv = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--uts", "--ipc"]
        argv += [
            "sh",
            "-c",
            ENTER,
            "sh",
            str(self.folder),
            "sh",
            "-c",
            SERVE.format(start=self.start, program=self.program),
        ]
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
            said, _ = process.communicate("", timeout=END_SECONDS)
            assert process.returncode == 0, said + self.log()[-2000:]
            assert re.search(r"^Deleted [1-9]", said, re.MULTILINE), said
        finally:
            process.kill()
            process.wait(END_SECONDS)
            self._wait_for_the_end()

    def _wait_for_the_end(self) -> None:
        """The kernel takes the namespace apart when it has the time."""
        deadline = time.monotonic() + END_SECONDS
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)

    def processes(self) -> list[str]:
        return remains.processes(self.data_dir, f"/cubicle/{self.instance}")

    def left(self) -> list[str]:
        """What is left of the service on this machine: processes, cgroups, mounts, loop devices."""
        found = [f"process {line}" for line in self.processes()]
        found += [f"cgroup {path}" for path in remains.cgroups(f"cubicle/{self.instance}")]
        found += [f"mount {path}" for path in remains.mounts(self.folder)]
        backing = Path("/sys/block").glob("loop*/loop/backing_file")
        return found + [f"loop device {path}" for path in backing if self.data_dir in remains._read(path)]


def copy_checkout(target: Path) -> None:
    """Every file of the working tree that git knows or would add; nothing that was built."""
    listing = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout.decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def apt_settings() -> str:
    """How apt of this machine reaches its archives: proxies, time limits, certificates."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True, timeout=60).stdout
    told = [line for line in dump.splitlines() if line.startswith("Acquire::") and not line.endswith(' "";')]
    return "".join(f"{line}\n" for line in told if not line.startswith("Acquire::IndexTargets"))


def registry_settings() -> dict[str, str]:
    """Where the registries of Python and Node packages are, as far as this machine is told; no word on certificates."""
    told = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX"):
        if os.environ.get(name):
            told[name] = os.environ[name]
    for place in ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf"):
        settings = configparser.ConfigParser(interpolation=None)
        settings.read(os.path.expanduser(place))
        for name in ("index-url", "proxy"):
            if value := settings.get("global", name, fallback=""):
                told.setdefault(f"PIP_{name.replace('-', '_').upper()}", value)
                if name == "index-url":
                    told.setdefault("UV_DEFAULT_INDEX", value)
    for place in ("/etc/npmrc", "/usr/etc/npmrc", os.path.expanduser("~/.npmrc")):
        lines = Path(place).read_text().splitlines() if Path(place).is_file() else []
        for key, _, value in (line.partition("=") for line in lines):
            if key.strip() in ("registry", "proxy", "https-proxy"):
                told[f"NPM_CONFIG_{key.strip().replace('-', '_').upper()}"] = value.strip()
    return told
