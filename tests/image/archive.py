"""A Debian archive of a test's own: packages, an index for each suite, and its signature."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Archive:
    """A folder that apt takes packages from, signed by a key that was made for it."""

    folder: Path
    architecture: str
    suites: dict[str, list[Path]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """apt's method `copy` fetches from a folder as others do from the network."""
        return f"copy:{self.folder}"

    @property
    def keyring(self) -> Path:
        return self.folder / "key.gpg"

    def make_key(self, name: str = "archive") -> None:
        self._gpg("--quick-generate-key", f"{name} <{name}@test>", "ed25519", "sign", "never")
        self.keyring.write_bytes(self._gpg("--export", f"{name}@test"))

    def package(self, name: str, version: str, depends: str = "") -> Path:
        """A package that holds nothing, in the pool."""
        tree = self.folder / "trees" / f"{name}-{version}"
        (tree / "DEBIAN").mkdir(parents=True)
        control = (
            f"Package: {name}\nVersion: {version}\nArchitecture: {self.architecture}\nMaintainer: A Test <a@test>\n"
        )
        control += f"Depends: {depends}\n" if depends else ""
        (tree / "DEBIAN/control").write_text(f"{control}Description: {name}\n")
        pool = self.folder / "pool"
        pool.mkdir(exist_ok=True)
        path = pool / f"{name}_{version}_{self.architecture}.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, path], check=True, stdout=-3, timeout=60)
        return path

    def publish(self, suite: str, *packages: Path) -> None:
        """Write the index of a suite and sign it."""
        entries = [f"{_control(path)}Filename: pool/{path.name}\n{_sums(path)}" for path in packages]
        index = self.folder / f"dists/{suite}/main/binary-{self.architecture}/Packages"
        index.parent.mkdir(parents=True)
        index.write_text("\n".join(entries))
        name = index.relative_to(self.folder / "dists" / suite)
        content = index.read_bytes()
        release = (
            f"Origin: Debian\nSuite: {suite}\nCodename: {suite}\nArchitectures: {self.architecture}\nComponents: main\n"
        )
        release += f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n"
        path = self.folder / f"dists/{suite}/Release"
        path.write_text(release)
        self._gpg("--clearsign", "--output", str(path.with_name("InRelease")), str(path))

    def _gpg(self, *arguments: str) -> bytes:
        home = self.folder / "gnupg"
        home.mkdir(mode=0o700, exist_ok=True)
        argv = ["gpg", "--homedir", str(home), "--batch", "--yes", "--pinentry-mode", "loopback", "--passphrase", ""]
        done = subprocess.run([*argv, *arguments], capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def close(self) -> None:
        """End the agent that gpg started."""
        subprocess.run(["gpgconf", "--homedir", str(self.folder / "gnupg"), "--kill", "all"], check=False, timeout=60)


def _control(path: Path) -> str:
    return subprocess.run(["dpkg-deb", "--field", path], check=True, capture_output=True, text=True, timeout=60).stdout


def _sums(path: Path) -> str:
    content = path.read_bytes()
    return f"Size: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
