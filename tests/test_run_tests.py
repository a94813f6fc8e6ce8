"""What `make test` runs: run-tests ends with whoever asked for it; with-fresh-state hides what is on the machine."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "run-tests"
STAND_IN = f"""#!{sys.executable}
import sys, time
try:
    print("started", *sys.argv[1:], flush=True)
    time.sleep(250)
except KeyboardInterrupt:
    print("took down what was up", flush=True)
"""
# Which image is asked for does not matter: it takes long, and can be found by its number.
BUILD = """#!/bin/sh
touch "$(dirname "$0")/build-$$"
exec sleep 250
"""
# The first part is told where to write which file has which marks; the last one fails.
MARKING = """#!/bin/sh
touch "$(dirname "$0")/begun"
echo "part: $*"
[ -z "$CUBICLE_MARKED_FILES" ] || printf '%s\\n' 'docker tests/two.py' 'oci tests/one.py' 'serial tests/two.py' >"$CUBICLE_MARKED_FILES"
[ "$2" != "serial and not kubernetes" ]
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["at the keyboard", "by a script"]
)
def test_a_signal_lets_pytest_take_down_what_is_up(tmp_path: Path, number: signal.Signals, code: int) -> None:
    stand_in(tmp_path, "pytest", STAND_IN)
    stand_in(tmp_path, "cubicle", BUILD)
    # A script that starts this one in the background has it ignore the interrupts of the keyboard.
    heeded = signal.SIG_DFL if number is signal.SIGINT else signal.SIG_IGN
    with subprocess.Popen(
        [SCRIPT],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, heeded),
    ) as running:
        assert running.stdout
        assert running.stdout.readline().startswith("==>")
        assert running.stdout.readline().startswith("started -n")
        until(lambda: len(builds(tmp_path)) == 2)
        os.killpg(running.pid, number)
        said, _ = running.communicate(timeout=200)
    assert running.returncode == code
    assert said == "took down what was up\n", "and no second part is begun"
    until(lambda: not any(Path("/proc", pid).exists() for pid in builds(tmp_path)))


def test_an_image_that_cannot_be_built_ends_the_run_and_shows_why(tmp_path: Path) -> None:
    stand_in(tmp_path, "pytest", "#!/bin/sh\necho part: $*\n")
    stand_in(
        tmp_path, "cubicle", '#!/bin/sh\n[ "$3" != standard ] || { echo the disk is full; exit 1; }\necho built $3\n'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert done.stdout.count("part: ") == 1
    assert "the disk is full" in done.stdout


def test_all_parts_run_when_the_images_are_built_and_one_failure_fails_all(tmp_path: Path) -> None:
    stand_in(tmp_path, "pytest", MARKING)
    late = f"until [ -e {tmp_path}/begun ]; do sleep 0.02; done"
    stand_in(tmp_path, "cubicle", f"#!/bin/sh\n{late}\necho built $3\n")
    failures = tmp_path / "failures"
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CUBICLE_FAILURES": str(failures)}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert failures.read_text() == "==> exit 1: pytest -m serial and not kubernetes tests/two.py\n"
    parts = [line for line in done.stdout.splitlines() if line.startswith("part: ")]
    assert len(parts) == 3
    assert parts[1].endswith("not kubernetes and not serial tests/one.py tests/two.py"), "and does not collect the rest"
    assert parts[2] == "part: -m serial and not kubernetes tests/two.py"
    assert all(f"built {variant}\n" in done.stdout for variant in ("slim", "standard", "full"))


def test_where_no_image_is_missing_all_that_goes_side_by_side_is_one_part(tmp_path: Path) -> None:
    stand_in(tmp_path, "pytest", MARKING)
    stand_in(tmp_path, "cubicle", f"#!/bin/sh\ntouch {tmp_path}/of-$PPID-$3\necho built $3\n")
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = [str(SCRIPT), "sh", "-c", built_by_then(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200, check=False)
    parts = [line for line in done.stdout.splitlines() if line.startswith("part: ")]
    assert parts == [
        "part: -n 4 --dist worksteal -m not kubernetes and not serial",
        "part: -m serial and not kubernetes tests/two.py",
    ]
    assert all(f"built {variant}\n" in done.stdout for variant in ("slim", "standard", "full"))


def test_what_goes_beside_the_images_is_told_before_the_last_part_and_counts(tmp_path: Path) -> None:
    last = '[ "$2" = "serial and not kubernetes" ]'
    stand_in(
        tmp_path, "pytest", f'#!/bin/sh\necho "part: $*"\n{last} || until [ -e {tmp_path}/met ]; do sleep 0.02; done\n'
    )
    stand_in(tmp_path, "cubicle", f"#!/bin/sh\ntouch {tmp_path}/of-$PPID-$3\necho built $3\n")
    stand_in(tmp_path, "beside", f"#!/bin/sh\necho beside $1 $CUBICLE_BESIDE\ntouch {tmp_path}/met\nsleep 1\nexit 3\n")
    failures = tmp_path / "failures"
    more = {"CUBICLE_BESIDE": "beside it", "CUBICLE_FAILURES": str(failures)}
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | more
    words = [str(SCRIPT), "sh", "-c", built_by_then(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert failures.read_text() == "==> exit 3: beside it\n"
    said = [line for line in done.stdout.splitlines() if line.startswith(("part: ", "beside"))]
    assert said == [
        "part: -n 4 --dist worksteal -m not kubernetes and not serial",
        "beside it",
        "part: -m serial and not kubernetes",
    ]


def test_a_signal_ends_what_goes_beside_too_and_waits_for_it(tmp_path: Path) -> None:
    stand_in(tmp_path, "pytest", STAND_IN)
    stand_in(tmp_path, "cubicle", f"#!/bin/sh\ntouch {tmp_path}/of-$PPID-$3\necho built $3\n")
    stand_in(
        tmp_path,
        "beside",
        f"#!/bin/bash\ntrap 'kill $!; sleep 1; touch {tmp_path}/taken-down; exit' TERM\ntouch {tmp_path}/met\nsleep 250 & wait\n",
    )
    with subprocess.Popen(
        [SCRIPT, "sh", "-c", built_by_then(tmp_path)],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CUBICLE_BESIDE": "beside"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        until((tmp_path / "met").exists)
        assert running.stdout
        while not running.stdout.readline().startswith("started"):
            pass
        running.terminate()
        said, _ = running.communicate(timeout=200)
    assert running.returncode == 143
    assert said.endswith("took down what was up\n")
    assert (tmp_path / "taken-down").exists()


def test_without_its_first_command_nothing_runs(tmp_path: Path) -> None:
    stand_in(tmp_path, "pytest", "#!/bin/sh\necho part: $*\n")
    stand_in(tmp_path, "cubicle", BUILD)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    gate = f"until [ $(ls {tmp_path} | grep -c build-) = 2 ]; do sleep 0.02; done; echo a gate; exit 3"
    words = [str(SCRIPT), "sh", "-c", gate]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (1, "a gate\n")
    until(lambda: not any(Path("/proc", pid).exists() for pid in builds(tmp_path)))


FRESH = SCRIPT.parent / "with-fresh-state"


def fresh(folder: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    home = folder / "home"
    (home / ".cache").mkdir(parents=True, exist_ok=True)
    (home / ".npmrc").write_text("registry=http://registry.test/\n")
    parent = folder / "parent"
    parent.mkdir(exist_ok=True)
    environment = os.environ | {"HOME": str(home), "CUBICLE_CI_DIR": str(parent), "IMAGE_DIR": "/old"} | more
    return subprocess.run([FRESH, *argv], env=environment, capture_output=True, text=True, timeout=200, check=False)


LOOK = "echo $HOME; ls -A $HOME; ls $IMAGE_DIR | wc -l; $PYTHON --version; exit 7"


def test_where_ci_is_set_home_and_images_are_empty_and_gone_afterwards(tmp_path: Path) -> None:
    done = fresh(tmp_path, "sh", "-c", LOOK, CI="1")
    _, home, *rest = done.stdout.splitlines()
    assert home.startswith(str(tmp_path / "parent/cubicle-fresh."))
    assert rest[:2] == [".npmrc", "0"], "how registries are reached comes along, and nothing else"
    assert rest[2].startswith("Python 3")
    assert done.returncode == 7
    assert list((tmp_path / "parent").iterdir()) == []


def test_elsewhere_a_run_has_what_the_developer_has(tmp_path: Path) -> None:
    done = fresh(tmp_path, "sh", "-c", "echo $HOME $IMAGE_DIR", CI="")
    assert done.stdout == f"{tmp_path / 'home'} /old\n"


def test_what_a_killed_run_left_is_removed_by_the_next_and_what_another_uses_is_not(tmp_path: Path) -> None:
    dead, used = tmp_path / "parent/cubicle-fresh.dead", tmp_path / "parent/cubicle-fresh.used"
    for folder in (dead, used):
        (folder / "images").mkdir(parents=True)
        (folder / "lock").touch()
    with (used / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert fresh(tmp_path, "true", CI="1").returncode == 0
    assert list((tmp_path / "parent").iterdir()) == [used]


def stand_in(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def built_by_then(folder: Path) -> str:
    """A gate that ends when both builds have."""
    return f"""for last in full standard; do
        until pid=$(ls {folder} | sed -n "s/^of-\\([0-9]*\\)-$last/\\1/p"); [ "$pid" ] && [ ! -e /proc/$pid ]; do sleep 0.02; done
    done"""


def builds(folder: Path) -> list[str]:
    return [path.name.removeprefix("build-") for path in folder.glob("build-*")]


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_tests_of_a_cluster_need_no_images_and_one_failure_fails_both_parts(tmp_path: Path) -> None:
    stand_in(tmp_path, "pytest", '#!/bin/sh\necho "part: $*"\n[ "$1" != -n ]\n')
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [str(SCRIPT), "kubernetes"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if line.startswith("part: ")] == [
        "part: -n 6 --dist worksteal -m kubernetes and not serial tests/drivers tests/members tests/worker",
        "part: -m kubernetes and serial tests/drivers tests/members tests/worker",
    ]
