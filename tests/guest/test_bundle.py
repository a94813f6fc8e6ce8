"""The guest's program: what the compiled one is made of, and its stand-ins for heavy modules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.guest import bundle, lean_modules
from cubicle.guest.connection import GuestChannel
from cubicle.guest.operation_table import OperationTable

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ODD = ["", " ", "{", "[1,]", "1 2", "nul", '"\\ud800"', "NaN", "-Infinity", ' {"a": 1} \n', "01", '"\n"', "[" * 100_000]
PROBE = """
import sys
sys.argv = ["guest", "{}"]
import guest.__main__
heavy = {"enum", "re", "functools", "selectors", "hashlib", "runpy", "typing"} & set(sys.modules)
assert not heavy, heavy
late = {"guest.files", "guest.kept_files", "guest.spawn_helper", "guest.handshake"}
assert not late & set(sys.modules), late & set(sys.modules)
import os
os.rename(__file__ + ".new", __file__)
import guest.files
import collections, json, signal, socket
try:
    json.loads('["a')
except ValueError:
    pass
assert collections.OrderedDict(a=1)["a"] == 1 and signal.Signals(9).name == "SIGKILL"
assert signal.SIGKILL == 9 and json.JSONDecoder().decode("[1]") == [1]
server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
server.bind(("127.0.0.1", 0))
server.listen(1)
client = socket.create_connection(server.getsockname())
with server.accept()[0] as accepted:
    accepted.sendall(b"x")
    assert client.recv(1) == b"x"
left, right = socket.socketpair()
socket.send_fds(left, [b"y"], [server.fileno()])
data, fds, _, _ = socket.recv_fds(right, 1, 1)
assert data == b"y" and len(fds) == 1
import re, traceback, threading, subprocess
assert re.fullmatch("a+", "aa")
print("good")
"""


def test_the_compiled_program_is_one_file_and_starts_without_heavy_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_START", PROBE)
    program = tmp_path / "guest.pyz"
    program.write_bytes(bundle.build([sys.executable]))
    program.with_name("guest.pyz.new").write_bytes(b"a newer one")  # takes its place before the rest is loaded
    done = subprocess.run([sys.executable, "-I", "-S", str(program)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "good\n", done.stderr


def test_channels_of_files_are_loaded_when_they_are_asked_for_and_never_after_a_halt() -> None:
    class Ping(GuestChannel):
        pass

    class Read(GuestChannel):
        pass

    loaded: list[str] = []

    def load() -> dict[str, type[GuestChannel]]:
        loaded.append("files")
        return {"read": Read}

    table = OperationTable({"ping": Ping}, load)
    assert table.find("ping") is Ping
    assert not loaded
    assert (table.find("read"), table.find("unknown"), table.find("ping")) == (Read, None, Ping)
    assert loaded == ["files"]
    halted = OperationTable({"ping": Ping}, load)
    halted.serve_only("halt", Ping)
    assert (halted.find("read"), halted.find("ping"), halted.find("halt")) == (None, None, Ping)
    assert loaded == ["files"]


def test_a_program_that_was_damaged_is_not_whole() -> None:
    for program in (bundle.build(), bundle.build([sys.executable])):
        assert bundle.is_whole(program)
        assert not bundle.is_whole(program[: len(program) // 2])
        middle = len(program) // 2
        assert not bundle.is_whole(program[:middle] + bytes([program[middle] ^ 1]) + program[middle + 1 :])
    assert not bundle.is_whole(b"")


@given(VALUES)
def test_json_is_written_and_read_as_the_full_module_does_it(value: object) -> None:
    text = json.dumps(value)
    assert lean_modules.JSONEncoder().encode(value) == text
    assert lean_modules.loads(text.encode()) == json.loads(text)
    compact = json.JSONEncoder(separators=(",", ":"), default=str).encode([value, 1j])
    assert lean_modules.JSONEncoder(separators=(",", ":"), default=str).encode([value, 1j]) == compact


@pytest.mark.parametrize("text", ODD, ids=repr)
def test_what_is_no_json_is_refused_as_by_the_full_module(text: str) -> None:
    def outcome(read: object) -> object:
        try:
            return repr(read(text))  # type: ignore[operator]
        except (ValueError, RecursionError) as error:
            return "wrong" if isinstance(error, ValueError) else "deep"

    assert outcome(lean_modules.loads) == outcome(json.loads)
