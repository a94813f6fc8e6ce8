"""The sum of an upload is that of its bytes, however they come."""

from __future__ import annotations

import hashlib

import pytest

from cubicle.files.checksum import Checksum


@pytest.mark.parametrize(
    "chunks", [[], [b""], [b"a", b"b"], [b"x" * 700_000] * 5, [bytes([i % 256]) * 65536 for i in range(40)]]
)
async def test_the_sum_is_that_of_all_chunks_in_order(chunks: list[bytes]) -> None:
    checksum = Checksum()
    for chunk in chunks:
        await checksum.add(chunk)
    assert await checksum.finish() == hashlib.sha256(b"".join(chunks)).hexdigest()
