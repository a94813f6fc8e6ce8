"""A driver that keeps blank sandboxes itself, and whose sandboxes may end without anybody here having a part in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.machine.errors import Gone, OwnerHasSandbox
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import Capabilities
from cubicle.sandbox.fleet import Fleet
from tests.support.emptying import empty

CHAT = Chat("a")


class Pooling(MemoryDriver):
    """Another service gives each chat a sandbox just before this one would."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, pools=True)

    async def take_blank(self, owner: str) -> str | None:
        await self.start("other", owner)
        await self.stop("other")
        raise OwnerHasSandbox("other")

    async def why_ended(self, name: str) -> str:
        return "Its node is being drained."


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(Pooling(tmp_path), ChatIndex(tmp_path / "chats"), pool_size=1) as fleet:
        yield fleet
    await empty(MemoryDriver(tmp_path))


async def test_a_chat_that_another_service_gave_a_sandbox_meanwhile_has_that(fleet: Fleet) -> None:
    async with fleet.lease(CHAT) as machine:
        assert machine.name == "other"


async def test_who_loses_a_sandbox_is_told_why_as_the_driver_knows_it(fleet: Fleet) -> None:
    with pytest.raises(Gone, match=r"Its node is being drained\.$"):
        async with fleet.lease(CHAT) as machine:
            await fleet._driver.stop(machine.name)
            await machine.output("true")


async def test_who_loses_a_sandbox_that_the_operator_stopped_is_not_told_something_else(fleet: Fleet) -> None:
    with pytest.raises(Gone) as gone:
        async with fleet.lease(CHAT) as machine:
            await fleet.stop(CHAT)
            await machine.output("true")
    assert "drained" not in str(gone.value)
