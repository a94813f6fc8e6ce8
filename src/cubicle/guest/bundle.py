"""Makes the guest's program: the same sources give the same bytes. Runs on the host, never in a sandbox."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

_LEFT_OUT = {"bundle.py"}
_START = "import guest.__main__\nguest.__main__.main()\n"
_HEADER = 16
"""Of compiled code: magic number, flags (1: not compared with a source), and in place of the source's hash our own."""

_COMPILE = """
import importlib.util, json, marshal, sys
given = json.load(sys.stdin)

def compiled(text, name):
    return marshal.dumps(compile(text, name, "exec", dont_inherit=True, optimize=2))

modules, blob = {}, b""
for name, text in given["modules"].items():
    code = compiled(text, name.replace(".", "/") + ".py")
    modules[name] = len(blob), len(code)
    blob += code
start = compiled("MODULES, SIZE = %r, %d\\n%s" % (modules, len(blob), given["start"]), "guest")
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + start + blob)
"""
"""Behind the code that starts it come those of the modules. As its constants, they would stay in memory for ever."""

_IMPORTER = """
import sys
from _frozen_importlib import ModuleSpec
from marshal import loads
from posix import O_CLOEXEC, O_RDONLY, close, fstat, open, pread

FILE = open(__file__, O_RDONLY | O_CLOEXEC)
PLACE = fstat(FILE).st_size - SIZE

def code_of(name):
    found = MODULES[name]
    return found if isinstance(found, bytes) else pread(FILE, found[1], PLACE + found[0])

class Bundled:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return ModuleSpec(name, Bundled, is_package=name == "guest") if name in MODULES else None

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        exec(loads(code_of(module.__name__)), module.__dict__)
        del MODULES[module.__name__]

sys.meta_path.insert(0, Bundled)
import guest.lean_modules
guest.lean_modules.install()
import guest.__main__
MODULES = {name: code_of(name) for name in MODULES}
close(FILE)  # on gVisor, commands could open it
"""
"""What is loaded later stays in memory until then: the file may be another one by that time."""


def build(python: Sequence[str] = ()) -> bytes:
    """The program: an archive of the sources, with a fixed date in every entry.

    With the argv of the interpreter that will run it (of the same version, say through chroot), it is one file of
    compiled code, which starts in a third of the time.
    """
    sources = {
        source.name: source.read_text()
        for source in sorted(Path(__file__).parent.glob("*.py"))
        if source.name not in _LEFT_OUT
    }
    return _compiled(sources, python) if python else _archive(sources)


def is_whole(program: bytes) -> bool:
    """Whether a program that was built before is as it was."""
    if program.startswith(b"PK"):
        try:
            with zipfile.ZipFile(io.BytesIO(program)) as archive:
                return archive.testzip() is None
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError):
            return False
    return len(program) > _HEADER and program[8:_HEADER] == _checksum(program[_HEADER:])


def _archive(sources: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, text in {"__main__.py": _START, **{f"guest/{name}": text for name, text in sources.items()}}.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), text.encode())
    return buffer.getvalue()


def _compiled(sources: dict[str, str], python: Sequence[str]) -> bytes:
    modules = {f"guest.{name[:-3]}".removesuffix(".__init__"): text for name, text in sources.items()}
    done = subprocess.run(
        [*python, "-I", "-S", "-c", _COMPILE],
        input=json.dumps({"modules": modules, "start": _IMPORTER + _START}).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    return done.stdout[:8] + _checksum(done.stdout[_HEADER:]) + done.stdout[_HEADER:]


def _checksum(code: bytes) -> bytes:
    return hashlib.sha256(code).digest()[:8]


def digest(bundle: bytes) -> str:
    return hashlib.sha256(bundle).hexdigest()[:16]


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(build(sys.argv[2:]))
