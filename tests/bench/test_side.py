"""Which commit a change is compared with, and that each side runs its own code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.side import NoBase, Side, exported, find_base, git, here


def commit(root: Path, text: str) -> str:
    (root / "src" / "cubicle").mkdir(parents=True, exist_ok=True)
    (root / "src" / "cubicle" / "__init__.py").write_text(f"# {text}\n")
    (root / "requirements.txt").write_text("")
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", text)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "first")
    return folder


def test_a_branch_is_compared_with_the_commit_where_it_left(root: Path) -> None:
    base = commit(root, "base")
    git(root, "checkout", "-q", "-b", "change")
    commit(root, "one")
    commit(root, "two")
    assert find_base(root) == base
    git(root, "checkout", "-q", "main")
    commit(root, "main went on")
    git(root, "checkout", "-q", "change")
    assert find_base(root) == base


def test_the_main_branch_itself_is_compared_with_what_it_was_before(root: Path) -> None:
    before = commit(root, "before")
    git(root, "checkout", "-q", "-b", "change")
    commit(root, "one")
    commit(root, "two")
    git(root, "checkout", "-q", "main")
    git(root, "-c", "user.name=a", "-c", "user.email=a@example.org", "merge", "-q", "--no-ff", "-m", "land", "change")
    assert find_base(root) == before


def test_without_a_main_branch_it_is_the_commit_before(root: Path) -> None:
    before = git(root, "rev-parse", "HEAD")
    git(root, "checkout", "-q", "--detach")
    git(root, "branch", "-q", "-D", "main")
    commit(root, "next")
    assert find_base(root) == before


def test_a_first_commit_has_no_base(root: Path) -> None:
    with pytest.raises(NoBase, match=r"no commit before this one$"):
        find_base(root)


def test_a_shallow_clone_is_named_as_such(root: Path, tmp_path: Path) -> None:
    commit(root, "second")
    clone = ["git", "clone", "-q", "--depth", "1", root.as_uri(), str(tmp_path / "clone")]
    subprocess.run(clone, check=True, timeout=60)
    with pytest.raises(NoBase, match=r"it is shallow$"):
        find_base(tmp_path / "clone")


def test_a_folder_without_a_repository_has_no_base(tmp_path: Path) -> None:
    with pytest.raises(NoBase, match="not a git repository"):
        find_base(tmp_path)


def test_a_commit_is_exported_as_it_was_and_goes_with_the_block(root: Path) -> None:
    (root / "src" / "cubicle" / "__init__.py").write_text("# not committed\n")
    with exported("HEAD", root) as side:
        assert (side.folder / "src" / "cubicle" / "__init__.py").read_text() == "# first\n"
        assert side.python == sys.executable
        found = subprocess.run(
            [side.python, "-c", "import cubicle; print(cubicle.__file__)"],
            env=side.environment, cwd="/", capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert found.stdout.strip() == str(side.folder / "src" / "cubicle" / "__init__.py")
    assert not side.folder.exists()


def test_a_commit_that_is_not_there_is_no_base(root: Path) -> None:
    with pytest.raises(NoBase, match="nowhere"), exported("nowhere", root):
        pass


def test_a_side_that_would_run_the_code_of_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(NoBase, match="not its own"):
        Side("empty", tmp_path).check()
    here().check()


def test_a_side_whose_packages_cannot_be_installed_is_no_base(root: Path) -> None:
    (root / "scripts").mkdir()
    (root / "scripts" / "environment").write_text("#!/bin/sh\necho there is no such package >&2\nexit 1\n")
    (root / "scripts" / "environment").chmod(0o755)
    commit(root, "other packages")
    (root / "requirements.txt").write_text("more==1\n")
    with pytest.raises(NoBase, match="there is no such package"), exported("HEAD", root):
        pass
