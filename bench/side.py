"""A state of the code whose service is measured: this folder, or a commit that is exported beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
MAIN = ("origin/main", "main", "origin/master", "master")
"""Names of the branch that changes land on, the first one that is there counts."""
_WHERE = "import cubicle; print(cubicle.__file__)"


class NoBase(Exception):
    """There is nothing to compare with; the message says why."""


@dataclass(frozen=True)
class Side:
    """One state of the code, and the Python that it runs with."""

    name: str
    folder: Path
    python: str = sys.executable

    @property
    def environment(self) -> dict[str, str]:
        """Of its programs. The same hashes on every side: their order moves a call's time by some percent."""
        names = {"PYTHONPATH": str(self.folder / "src"), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": ""}
        return dict(os.environ) | names

    def check(self) -> None:
        """That its own package is what runs; raises NoBase."""
        command = [self.python, "-c", _WHERE]
        done = subprocess.run(
            command, env=self.environment, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise NoBase(f"{self.name} cannot be imported: {done.stderr.strip()[-300:]}")
        if not Path(done.stdout.strip()).is_relative_to(self.folder):
            raise NoBase(f"{self.name} would run {done.stdout.strip()}, which is not its own")


def here(root: Path = ROOT) -> Side:
    """The code of this folder, with what is not committed."""
    return Side("here", root)


def git(root: Path, *arguments: str) -> str:
    """Raises NoBase."""
    command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise NoBase(f"git cannot be run: {error.strerror}") from None
    if done.returncode:
        raise NoBase(f"git {' '.join(arguments)}: {done.stderr.strip() or 'no answer'}")
    return done.stdout.strip()


def find_base(root: Path = ROOT) -> str:
    """The commit that a change is compared with; raises NoBase.

    Where the change is not on the main branch yet, the commit at which it left that branch. Where it is, as in a check
    of the main branch itself, the first parent of the last commit: the main branch before it.
    """
    head = git(root, "rev-parse", "HEAD^{commit}")
    for name in MAIN:
        try:
            base = git(root, "merge-base", "HEAD", name)
        except NoBase:
            continue
        if base != head:
            return base
    try:
        return git(root, "rev-parse", "--verify", "HEAD~^{commit}")
    except NoBase:
        shallow = git(root, "rev-parse", "--is-shallow-repository") == "true"
        raise NoBase("this clone has no commit before this one" + (": it is shallow" if shallow else "")) from None


@contextmanager
def exported(commit: str, root: Path = ROOT) -> Iterator[Side]:
    """A side of this commit, for the block; raises NoBase."""
    short = git(root, "rev-parse", "--short=8", f"{commit}^{{commit}}")
    with TemporaryDirectory(prefix="cubicle-side-", dir="/var/tmp") as name:
        folder = Path(name)
        archive = folder / "tree.tar"
        git(root, "archive", "--output", str(archive), commit)
        subprocess.run(["tar", "-xf", str(archive), "-C", name], check=True, timeout=120)
        archive.unlink()
        folder.chmod(0o755)  # sandboxes read their guest here as nobody of this machine
        side = Side(short, folder, _python_for(folder, root))
        side.check()
        yield side


def _python_for(folder: Path, root: Path) -> str:
    """This one where both sides want the same packages, else one of its own."""
    ours, theirs = ((each / "requirements.txt").read_text() for each in (root, folder))
    if ours == theirs:
        return sys.executable
    done = subprocess.run(
        ["scripts/environment", "serve"], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise NoBase(f"its packages cannot be installed: {done.stderr.strip()[-300:]}")
    return str(folder / ".venv" / "bin" / "python")
