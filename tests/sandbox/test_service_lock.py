"""One service over a DATA_DIR, or several replicas: who may start beside whom, and what the command line sees."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from cubicle.sandbox import service_lock
from cubicle.sandbox.service_lock import no_service_of, only_service_of, replica_of, service_of
from cubicle.settings import BadSettings

PLACE = "127.0.0.1:8000"
HELD = "from pathlib import Path; from cubicle.sandbox.service_lock import *; import sys, time\nwith {}(Path({!r}), 'a:1'):"
HELD += "\n  print('held', flush=True); time.sleep(600)"


@contextmanager
def elsewhere(kind: str, data: Path) -> Iterator[int]:
    """Held by another process; its id."""
    with subprocess.Popen([sys.executable, "-c", HELD.format(kind, str(data))], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process.pid
        finally:
            process.kill()


def seen(data: Path) -> tuple[str | None, bool]:
    with no_service_of(data) as alone:
        return service_of(data), alone


def test_replicas_stand_beside_each_other_and_beside_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_lock, "_START_SECONDS", 0.3)
    assert seen(tmp_path) == (None, True)
    with elsewhere("replica_of", tmp_path) as other, ExitStack() as ours:
        ours.enter_context(replica_of(tmp_path, PLACE))
        with pytest.raises(BadSettings, match="Another service uses"), only_service_of(tmp_path, PLACE):
            pass
        assert seen(tmp_path) == (PLACE, False)
        ours.close()
        assert seen(tmp_path) == (PLACE, False), "the other one goes on"
        with pytest.raises(BadSettings, match="Another service uses"), only_service_of(tmp_path, PLACE):
            pass
        os.kill(other, signal.SIGKILL)
        os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
        assert seen(tmp_path) == (None, True), "a lock outlived its process"
    with only_service_of(tmp_path, PLACE):
        pass


@pytest.mark.parametrize("start", [only_service_of, replica_of])
def test_nothing_starts_beside_the_one_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[Path, str], AbstractContextManager[object]]
) -> None:
    monkeypatch.setattr(service_lock, "_START_SECONDS", 0.3)
    with elsewhere("only_service_of", tmp_path):
        with pytest.raises(BadSettings, match="Another service uses"), start(tmp_path, PLACE):
            pass
        assert seen(tmp_path) == ("a:1", False)
    with start(tmp_path, PLACE):
        assert seen(tmp_path) == (PLACE, False)
    assert seen(tmp_path) == (None, True)


def test_a_replica_waits_for_another_that_starts_and_many_start_at_once(tmp_path: Path) -> None:
    lock = service_lock.open_lock(tmp_path / "serving")
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(0.5, os.close, (lock,)).start()
    began = time.monotonic()
    up: list[int] = []
    over = threading.Event()

    def replica(number: int) -> None:
        with replica_of(tmp_path, PLACE):
            up.append(number)
            over.wait(30)

    threads = [threading.Thread(target=replica, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while len(up) < 8 and time.monotonic() - began < 20:
        time.sleep(0.01)
    assert sorted(up) == list(range(8))
    assert time.monotonic() - began > 0.4
    over.set()
    for thread in threads:
        thread.join()
    assert seen(tmp_path) == (None, True)


def test_many_look_at_once_and_none_takes_another_for_a_service(tmp_path: Path) -> None:
    with replica_of(tmp_path, PLACE):
        pass
    found: list[tuple[str | None, bool]] = []
    threads = [threading.Thread(target=lambda: found.extend(seen(tmp_path) for _ in range(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {(None, True)}
    assert len(found) == 200


@pytest.mark.parametrize("there", ["nothing", "a folder", "a link", "a fifo"])
def test_what_is_no_file_in_its_place_stops_nobody(tmp_path: Path, there: str) -> None:
    place = tmp_path / "serving-replicas"
    if there == "a folder":
        place.mkdir()
    elif there == "a link":
        place.symlink_to(place.name)
    elif there == "a fifo":
        os.mkfifo(place)
    with only_service_of(tmp_path, PLACE):
        pass
    assert seen(tmp_path) == (None, True)
    with replica_of(tmp_path, PLACE):
        assert seen(tmp_path) == (PLACE, False)
