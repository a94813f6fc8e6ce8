"""kill -9 at every point that matters of what the service does with a sandbox or an image: each recovers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cubicle import settings
from cubicle.drivers.factory import make_driver
from cubicle.images.store import ImageStore, Variant
from tests.support.emptying import empty

LONG = bool(os.environ.get("CUBICLE_LONG"))
POINTS = 400 if LONG else 4
"""Of each deed at most, evenly spread; a deed has 30 to 150."""

Ask = Callable[[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory, image: str) -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("kill_points.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-W", "ignore", str(script), str(settings.load().image_dir), image]
    with (tmp_path_factory.mktemp("runner") / "log").open("wb") as log:
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    with process:  # closes what it reads and writes, and waits
        yield process


@pytest.fixture
def ask(tmp_path: Path, image: str, runner: subprocess.Popen[str]) -> Iterator[Ask]:
    data = tmp_path / "data"

    def answered(deed: str, point: int) -> dict[str, Any]:
        assert runner.stdin is not None
        assert runner.stdout is not None
        runner.stdin.write(json.dumps({"data": str(data), "deed": deed, "point": point}) + "\n")
        runner.stdin.flush()
        found: dict[str, Any] = json.loads(runner.stdout.readline())
        return found

    yield answered
    asyncio.run(empty(make_driver(settings.load(data_dir=data, sandbox_image=image))))


def spread(count: int) -> Iterator[int]:
    step = max(1, -(-count // POINTS))
    return iter(range(1, count + 1, step))


@pytest.mark.oci
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("deed", ["create", "bind", "wake", "stop", "discard", "delete"])
def test_a_kill_at_any_point_loses_nothing(deed: str, ask: Ask) -> None:
    whole = ask(deed, -1)
    assert "failed" not in whole, whole
    assert whole["count"] > 5
    ends = set()
    for point in spread(whole["count"]):
        found = ask(deed, point)
        assert "failed" not in found, (point, found)
        assert found["neighbour"] == "kept\n", (point, found)
        assert not found["twice"], (point, found)
        if deed in ("wake", "stop"):
            assert found["mine"] == "mine\n", (point, found)
        if deed == "discard":
            assert found["had"] is not (found["trashed"] > 0), (point, found)
            assert found["mine"] == ("mine\n" if found["had"] else ""), (point, found)
        ends.add(found["killed"])
    assert True in ends


# ---- images


_BUILD = """
import os, signal, sys
from pathlib import Path
from cubicle.images.store import ImageStore, Manifest, Variant
COUNTED = ("os.rename", "os.symlink", "os.link", "os.remove", "os.mkdir", "os.rmdir", "open", "shutil.rmtree")
left = [int(sys.argv[2])]

def fill(folder):
    (folder / "rootfs" / "bin").mkdir(parents=True)
    (folder / "rootfs" / "bin" / "sh").write_bytes(b"x" * 100_000)
    return Manifest("slim", "here", "now", 1.0, 100_000, {})

def see(event, arguments):
    if event in COUNTED:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

store = ImageStore(Path(sys.argv[1]))
sys.addaudithook(see)
base = store.make(Variant.SLIM, fill)
print(-left[0])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_kill_at_any_point_of_a_build_leaves_a_whole_image_or_none(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def build(folder: Path, point: int) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", _BUILD, str(folder), str(point)]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100, check=False)

    whole = build(tmp_path / "whole", 10**9)
    assert whole.returncode == 0, whole.stderr
    count = 10**9 + int(whole.stdout)
    assert count > 5
    outcomes = set()
    for point in spread(count):
        folder = tmp_path / str(point)
        assert build(folder, point).returncode == -signal.SIGKILL
        store = ImageStore(folder)
        outcomes.add(len(store.built()))
        for base in store.built():
            assert (base.rootfs / "bin/sh").stat().st_size == 100_000
        assert build(folder, 10**9).returncode == 0
        assert [base.digest for base in store.built()] == [store.recipe.digest(Variant.SLIM)]
        assert not any(folder.glob("building/*"))
    assert 0 in outcomes
