"""The guest's helper: what it starts is heard of to its end, whatever happens to it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PRELUDE = """
import os, signal, time
from cubicle.guest.process_table import ProcessTable
from cubicle.guest.spawn_helper import SpawnHelper
from cubicle.guest.identity import Identity
from cubicle.guest.loop import Loop
from cubicle.guest.spawn import Program

loop, marks, ended = Loop(), ProcessTable(apart=False), {}
helper = SpawnHelper(loop, Identity(os.getuid(), os.getgid()), marks, ended.__setitem__)
nothing = os.open("/dev/null", os.O_RDWR)

def start(*argv):
    return helper.start(Program(list(argv), {}, "/", marks.next(), True), (nothing,) * 3)

def end_of(pid):
    loop.later(50, lambda: os._exit(9))
    while pid not in ended:
        loop.turn()
    return ended[pid]
"""
CASES = {
    "an end that comes with the word of the start is not lost": """
hear = helper._patiently
helper._patiently = lambda desk: (time.sleep(0.5), hear(desk))[1]
assert end_of(start("/bin/sh", "-c", "exit 3")) == 3 << 8
""",
    "one that was killed is replaced": """
os.kill(helper.pid, signal.SIGKILL)
os.waitid(os.P_PID, helper.pid, os.WEXITED | os.WNOWAIT)
assert end_of(start("/bin/true")) == 0
""",
    "one that was stopped is woken": """
os.kill(helper.pid, signal.SIGSTOP)
assert end_of(start("/bin/true")) == 0
""",
    "what one had started when it was killed, and not told of, is taken over and not started again": """
import ctypes, tempfile
from cubicle.guest.spawn_helper import _Desk
ctypes.CDLL(None).prctl(36, 1)  # as process 1 of a sandbox, this one gets the orphans
say = _Desk._say
def say_and_die(desk, kind, *words, **more):
    if kind == "started": os.kill(os.getpid(), signal.SIGKILL)
    say(desk, kind, *words, **more)
for seconds in ("0", "1"):  # it may be over by then, or not
    _Desk._say = say_and_die
    os.kill(helper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, helper.pid, os.WEXITED | os.WNOWAIT)
    with tempfile.NamedTemporaryFile() as file:
        pid = start("/bin/sh", "-c", 'echo once >> "$0"; sleep "$1"; exit 3', file.name, seconds)
        _Desk._say = say
        assert os.waitpid(pid, 0)[1] == 3 << 8
        assert open(file.name).read() == "once\\n"
    start("/bin/true")
""",
    "a program that is not there is refused": """
from cubicle.guest.connection import OperationRefused
try: start("/nowhere")
except OperationRefused as no: assert no.code == "bad-command"
else: raise AssertionError
""",
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_deputy(case: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + case], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
