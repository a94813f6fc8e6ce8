"""The gate of speed: it runs here, for this code; and it tells what is slower from what is not.

CUBICLE_LONG=1 asks it five times each, on true sandboxes.
"""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rich.console import Console

from bench import gate
from bench.gate import Comparison, compare, default_terms
from bench.measure import Terms
from bench.side import ROOT, exported, git, here

SLOWER = """

def _slower(receive):
    import time

    def data_received(self, data):
        end = time.thread_time() + {seconds}
        while time.thread_time() < end:
            pass
        receive(self, data)

    return data_received

HttpConnection.data_received = _slower(HttpConnection.data_received)
"""


SERVED = ("src", "image", "skills", "pyproject.toml", "requirements.txt")
"""What of the repository a service needs."""


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    """One of its own that has this commit's code, as far as it is served."""
    with TemporaryDirectory(prefix="cubicle-copy-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        git(ROOT, "archive", "--output", f"{name}/tree.tar", "HEAD", *SERVED)
        subprocess.run(["tar", "-xf", f"{name}/tree.tar", "-C", name], check=True, timeout=120)
        (folder / "tree.tar").unlink()
        (folder / ".gitignore").write_text("__pycache__\n")
        git(folder, "init", "-q", "-b", "main")
        git(folder, "add", ".")
        git(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "copy")
        git(folder, "tag", "first")
        yield folder


@pytest.fixture
def copy(repository: Path) -> Iterator[Path]:
    """The same, to be changed; what was compiled of it stays."""
    yield repository
    git(repository, "reset", "-q", "--hard", "first")


@pytest.fixture
def said() -> Console:
    return Console(width=120, file=io.StringIO())


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def memory(tmp_path: Path) -> Terms:
    return replace(default_terms("memory"), folder=str(tmp_path))


@pytest.mark.oci
@pytest.mark.serial
@pytest.mark.timeout(600)
def test_this_code_is_as_fast_as_the_commit_it_is_based_on(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        base = os.environ.get("CUBICLE_BENCH_BASE", "")
        assert gate.gate(base, default_terms("oci"), gate.TURNS, Console(width=120)), "see the table above"


@pytest.mark.oci
@pytest.mark.serial
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_fifth_more_is_a_loss_and_the_same_code_is_none(copy: Path, said: Console) -> None:
    terms = default_terms("oci")
    with exported("HEAD", copy) as side:
        plain = {found.key: found.base for found in compare(side, here(copy), terms, 4)}
    for _ in range(5):
        assert gate.gate("HEAD", terms, gate.TURNS, said, copy), text_of(said)
    path = copy / "src" / "cubicle" / "http_api" / "uvicorn_http.py"
    # Processor time, and a fifth of that of a call: however busy the machine is, no call costs more than a fifth more.
    path.write_text(path.read_text() + SLOWER.format(seconds=plain["cpu"] / 1000 / 5))
    for _ in range(5):
        assert not gate.gate("HEAD", terms, gate.TURNS, said, copy), text_of(said)
    assert "twice." in text_of(said)


def test_a_base_that_does_not_start_passes_and_is_named(copy: Path, said: Console, memory: Terms) -> None:
    path = copy / "src" / "cubicle" / "app.py"
    good = path.read_text()
    path.write_text("raise SystemExit('broken')\n")
    git(copy, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-a", "-m", "broken")
    path.write_text(good)
    assert gate.gate("HEAD", memory, 1, said, copy)
    assert "No comparison of speed: the service of" in text_of(said)


def test_a_change_that_does_not_start_fails(copy: Path, said: Console, memory: Terms) -> None:
    (copy / "src" / "cubicle" / "app.py").write_text("raise SystemExit('broken')\n")
    assert not gate.gate("HEAD", memory, 1, said, copy)
    assert "A side failed: here: the service does not start" in text_of(said)


@pytest.mark.long
def test_a_change_whose_calls_fail_fails(copy: Path, said: Console, memory: Terms) -> None:
    path = copy / "src" / "cubicle" / "tools" / "registry.py"
    path.write_text(path.read_text().replace('"bash_tool"', '"sh_tool"'))
    tools = copy / "src" / "cubicle" / "tools"
    for source in tools.glob("*.py"):
        source.write_text(source.read_text().replace('"bash_tool"', '"sh_tool"'))
    assert not gate.gate("HEAD", memory, 1, said, copy)
    assert "A side failed: here" in text_of(said)


def test_a_repository_of_one_commit_passes_and_says_why(copy: Path, said: Console, memory: Terms) -> None:
    assert gate.gate("", memory, 1, said, copy)
    assert "No comparison of speed: this clone has no commit before this one." in text_of(said)


def comparison(*ratios: float, key: str = "warm") -> Comparison:
    return Comparison.of(key, [1.0] * len(ratios), ratios)


def test_a_loss_is_more_than_a_tenth_and_surely_one() -> None:
    assert comparison(*[1.12] * 12).is_loss
    assert not comparison(*[1.09] * 12).is_loss
    assert not comparison(*[0.5] * 12).is_loss
    assert not comparison(*[0.7, 0.8, 0.9, 1.15, 1.3, 1.4]).is_loss, "turns that differ by more than that say nothing"


def test_a_few_turns_are_enough_where_they_agree_that_nothing_is_a_loss() -> None:
    assert comparison(0.97, 1.0, 1.01, 1.02, 1.04, 1.05).is_surely_none
    assert not comparison(0.97, 1.0, 1.01, 1.02, 1.15, 1.2).is_surely_none
    assert not comparison(*[1.12] * 6).is_surely_none


def test_a_turn_that_was_disturbed_does_not_count() -> None:
    assert not comparison(*[1.0] * 10, 9.0, 9.0).is_loss


def test_a_loss_that_is_taken_on_purpose_passes_up_to_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gate.ACCEPTED, "cold", 1.3)
    assert not comparison(*[1.25] * 12, key="cold").is_loss
    assert comparison(*[1.35] * 12, key="cold").is_loss
    assert comparison(*[1.25] * 12, key="wake").is_loss
