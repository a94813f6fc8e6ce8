"""What conftest.py promises to every test."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from blockbuster import BlockingError

from cubicle.guest import bundle
from tests.conftest import LEFT_BEHIND, absent
from tests.support import skips


async def test_asynchronous_tests_run_on_asyncio() -> None:
    assert asyncio.get_running_loop().is_running()


async def test_a_call_of_the_package_that_blocks_the_loop_fails() -> None:
    with pytest.raises(BlockingError):
        bundle.build()


async def test_the_same_call_in_a_thread_does_not() -> None:
    assert await asyncio.to_thread(bundle.build)


def test_a_warning_is_an_error() -> None:
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning, stacklevel=1)


def test_a_missing_part_skips_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBICLE_REQUIRE_ALL", raising=False)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs a moon"):
        absent("needs a moon")


@pytest.mark.parametrize("variable", ["CUBICLE_REQUIRE_ALL", "CI"])
def test_where_all_is_promised_a_missing_part_fails_a_test(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(pytest.fail.Exception, match="needs a moon"):
        absent("needs a moon")


@pytest.mark.parametrize(
    ("mark", "variable", "is_left_out"),
    [
        ("long", "", True),
        ("long", "CI", True),
        ("long", "CUBICLE_LONG", False),
        ("bare", "", True),
        ("bare", "CI", False),
        ("bare", "CUBICLE_LONG", False),
        ("real", "", False),
    ],
)
def test_what_only_some_runs_have_is_left_out_of_the_others(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, mark: str, variable: str, is_left_out: bool
) -> None:
    for name in ("CI", "CUBICLE_LONG"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    request.node.add_marker(mark)
    assert skips.left_out(request.node) == (mark if is_left_out else "")


SKIPPING = """
import pytest
def test_for_want_of_a_moon():
    pytest.skip("needs a moon")
def test_for_want_of_a_feature():
    pytest.skip("this kernel has no xfs with quotas: unknown file system")
@pytest.mark.skipif(True, reason="no moon either")
def test_by_a_mark():
    pass
@pytest.mark.xfail
def test_that_is_expected_to_fail():
    assert False
@pytest.mark.long
def test_that_takes_long():
    pass
"""


@pytest.mark.real
@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "side by side"])
def test_where_all_is_promised_a_skip_fails_unless_the_kernel_is_why(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    failures = tmp_path / "failures"
    failures.write_text("of the part before\n")
    done = _run(tmp_path, *workers, CUBICLE_REQUIRE_ALL="1", CUBICLE_FAILURES=str(failures))
    assert "1 failed, 1 skipped, " in done.stdout, done.stdout
    assert "no moon either (tests/support/skips.py does not allow this" in done.stdout
    assert "needs a moon (tests/support/skips.py does not allow this" in done.stdout
    assert "SKIPPED 1 × this kernel has no xfs with quotas: unknown file system" in done.stdout
    assert "LEFT OUT 1 × long version: CUBICLE_LONG=1 runs it" in done.stdout
    kept = failures.read_text()
    assert kept.startswith("of the part before\nFAILED ")
    assert "FAILED test_skipping.py::test_for_want_of_a_moon (call)\n" in kept
    assert "\n    Skipped: needs a moon (tests/support/skips.py" in kept
    assert kept.count("FAILED ") == 2, "one in a test, one by its mark"
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.real
def test_alone_a_skip_is_counted_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    done = _run(tmp_path, CUBICLE_LONG="1")
    assert "1 passed, 3 skipped, 1 xfailed" in done.stdout, done.stdout
    assert "SKIPPED 1 × needs a moon" in done.stdout
    assert done.returncode == pytest.ExitCode.OK


@pytest.mark.real
def test_where_all_is_promised_a_file_that_skips_itself_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_skipping.py").write_text("import pytest\npytest.skip('no moon', allow_module_level=True)\n")
    done = _run(tmp_path, CUBICLE_REQUIRE_ALL="1")
    assert "no moon (tests/support/skips.py does not allow this" in done.stdout, done.stdout
    assert done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def _run(folder: Path, *arguments: str, settled: int = 1, **more: str) -> subprocess.CompletedProcess[str]:
    """A run of its own over the tests in a folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CUBICLE_"))}
    environment.pop("CI", None)
    environment |= more | {"CUBICLE_SETTLED_SECONDS": str(settled), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command += ["--rootdir", str(folder), *arguments, str(folder)]
    root = Path(__file__).parent.parent
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.real
def test_a_run_that_is_interrupted_ends_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "test_leak.py").write_text(
        "import pathlib, subprocess\n"
        "def test_that_is_interrupted():\n"
        f"    told = pathlib.Path({str(tmp_path)!r}, 'pid')\n"
        "    script = 'echo $$ >$1.new; mv $1.new $1; exec sleep 1000'\n"
        "    subprocess.run(['setsid', '--fork', 'sh', '-c', script, 'sh', told], check=True, stdout=-3, stderr=-3)\n"
        "    while not told.exists(): pass\n"
        "    raise KeyboardInterrupt\n"
    )
    done = _run(tmp_path, settled=60)
    assert "LEFT BEHIND" not in done.stdout
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert not Path("/proc", (tmp_path / "pid").read_text().strip(), "exe").exists()


@pytest.mark.real
def test_a_run_that_leaves_a_process_behind_fails_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "test_leak.py").write_text(
        "import subprocess\n"
        "def test_that_leaves_a_process():\n"
        "    subprocess.run(['setsid', '--fork', 'sleep', '1000'], check=True, stdout=-3, stderr=-3)\n"
    )
    done = _run(tmp_path, "-p", "xdist", "-n", "1")
    assert "1 passed" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "LEFT BEHIND" in line]
    found = re.fullmatch(r"LEFT BEHIND process (\d+): sleep 1000", line)
    assert found
    os.kill(int(found[1]), signal.SIGKILL)
    assert done.returncode == LEFT_BEHIND
