from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.audit.disk import small_disk as mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with mounted(tmp_path / "disk") as folder:
        yield folder
