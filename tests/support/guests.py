"""The guest's program, compiled once in a run of tests for each Python.

A service compiles it for a new data folder, and most tests have one: a tenth of a second of a processor each.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from cubicle.guest import bundle

_compiled: Callable[[dict[str, str], Sequence[str]], bytes] = bundle._compiled


def compile_once() -> None:
    """In this process, and in those that it forks."""
    bundle._compiled = _from_before


def _from_before(sources: dict[str, str], python: Sequence[str]) -> bytes:
    base = os.environ.get("CUBICLE_TEST_RUN")
    if base is None:
        return _compiled(sources, python)
    key = json.dumps([sources, list(python), [_identity(word) for word in python if word.startswith("/")]])
    kept = Path(base, "guests", hashlib.sha256(key.encode()).hexdigest())
    with suppress(OSError):
        return kept.read_bytes()
    program = _compiled(sources, python)
    draft = kept.with_name(f"{kept.name}.{os.getpid()}.{threading.get_ident()}")
    with suppress(OSError):  # a service that sees other folders, or may not write there
        kept.parent.mkdir(exist_ok=True)
        draft.write_bytes(program)
        draft.rename(kept)
    return program


def _identity(word: str) -> list[int]:
    """Which file or folder it is: another one may come to the same place."""
    try:
        seen = os.stat(word)
    except OSError:
        return []
    return [seen.st_dev, seen.st_ino, seen.st_mtime_ns]
