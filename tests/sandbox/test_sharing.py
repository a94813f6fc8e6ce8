"""A chat that was left to another process of the service is not used here, whatever was on its way for it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.machine.errors import SandboxError
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import SandboxSeen
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.sharing import Alone, LeftToAnother
from tests.mcp_api.test_streaming import call
from tests.support.service import service_of

pytestmark = pytest.mark.anyio
CHAT = Chat("left", "acme")


class Shared(Alone):
    def __init__(self) -> None:
        self.left: set[str] = set()

    def require(self, digest: str) -> None:
        if digest in self.left:
            raise LeftToAnother


async def test_a_request_that_comes_after_its_chat_was_left_makes_no_sandbox_for_it(tmp_path: Path) -> None:
    driver, sharing = MemoryDriver(tmp_path), Shared()
    async with Fleet(driver, ChatIndex(tmp_path / "chats"), sharing=sharing, pool_size=0) as fleet:
        sharing.left.add(CHAT.digest)
        for create in (True, False):
            with pytest.raises(SandboxError, match="gone to another process"):
                async with fleet.lease(CHAT, create=create):
                    pytest.fail("it was used")
        assert not fleet.holds(CHAT.digest)
        assert await driver.list() == []


async def test_a_chat_that_is_left_while_its_sandbox_is_looked_at_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, sharing = MemoryDriver(tmp_path), Shared()
    async with Fleet(driver, ChatIndex(tmp_path / "chats"), sharing=sharing, pool_size=0) as fleet:
        async with fleet.lease(CHAT) as machine:
            name = machine.name
        slot, look = fleet._slots[CHAT.digest], driver.list
        assert slot.live is not None
        slot.live.close()
        while slot.live is not None:
            await asyncio.sleep(0)

        async def leave() -> Sequence[SandboxSeen]:
            seen = await look()
            assert fleet.let_go(CHAT.digest)
            sharing.left.add(CHAT.digest)
            return seen

        monkeypatch.setattr(driver, "list", leave)
        with pytest.raises(SandboxError, match="gone to another process"):
            async with fleet.lease(CHAT, wake=False):
                pytest.fail("it was used")
        assert slot.leases == 0
        monkeypatch.undo()
        assert [seen.name for seen in await driver.list()] == [name]
        await driver.delete(name)


async def test_a_caller_whose_chat_was_left_meanwhile_is_told_to_try_again(tmp_path: Path) -> None:
    """With a status, on which clients do try again: as a tool's answer, it would be the model's to do."""
    driver, sharing = MemoryDriver(tmp_path), Shared()
    async with (
        Fleet(driver, ChatIndex(tmp_path / "chats"), sharing=sharing, pool_size=0) as fleet,
        service_of(fleet) as service,
    ):
        sharing.left.add(Chat("left").digest)
        for headers in ({}, {"Mcp-Session-Id": str(uuid.uuid4()), "MCP-Protocol-Version": "2025-11-25"}):
            answer = await service.post(call("true"), chat="left", headers=headers)
            assert answer.status_code == 503
            assert "gone to another process" in answer.text
            assert answer.headers["Retry-After"] == "1"
        sharing.left.clear()
        assert (await service.post(call("true"), chat="left")).status_code == 200
        await driver.delete(next(seen.name for seen in await driver.list()))
