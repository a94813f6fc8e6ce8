"""How a test makes each driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cubicle.drivers.memory import MemoryDriver
from cubicle.sandbox.driver import Driver

Maker = Callable[[], Driver]


def memory(folder: Path) -> Maker:
    return lambda: MemoryDriver(folder)


MAKERS = [pytest.param(memory, id="memory")]
