from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import small_cluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    small_cluster.Running.stop_all()
