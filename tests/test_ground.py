"""What conftest.py promises to every test."""

from __future__ import annotations

import asyncio
import warnings

import pytest
from blockbuster import BlockingError

from cubicle.guest import bundle
from tests.conftest import absent


async def test_asynchronous_tests_run_on_asyncio() -> None:
    assert asyncio.get_running_loop().is_running()


async def test_a_call_of_the_package_that_blocks_the_loop_fails() -> None:
    with pytest.raises(BlockingError):
        bundle.build()


async def test_the_same_call_in_a_thread_does_not() -> None:
    assert await asyncio.to_thread(bundle.build)


def test_a_warning_is_an_error() -> None:
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning, stacklevel=1)


def test_a_missing_part_skips_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBICLE_REQUIRE_ALL", raising=False)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs a moon"):
        absent("needs a moon")


@pytest.mark.parametrize("variable", ["CUBICLE_REQUIRE_ALL", "CI"])
def test_where_all_is_promised_a_missing_part_fails_a_test(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(pytest.fail.Exception, match="needs a moon"):
        absent("needs a moon")
