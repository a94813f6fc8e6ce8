"""What is the same for all drivers whose sandboxes nobody but the service itself keeps, moves or reaches."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cubicle.sandbox.driver import SandboxSeen
from cubicle.sandbox.trash import Discarded


class NeverFrozen:
    """Part of the Driver protocol (sandbox/driver.py)."""

    async def resume(self, name: str) -> bool:
        return False

    async def freeze(self, name: str) -> bool:
        return False

    async def give_memory_back(self, name: str) -> None:
        """What is never frozen needs what it has."""


class OneHost(NeverFrozen):
    """Part of the Driver protocol (sandbox/driver.py)."""

    async def take_blank(self, owner: str) -> str | None:
        return None

    async def take_over(self, owner: str) -> None:
        """Connections end with the process that had them."""

    async def address(self, name: str) -> tuple[str, int] | None:
        return None

    async def why_ended(self, name: str) -> str:
        return ""

    async def delete_blank(self, name: str) -> bool:
        if any(seen.name == name and seen.owner is not None for seen in await self.list()):
            return False
        if name not in {each.name for each in await self.discarded()}:
            await self.delete(name)
        return True

    async def purge(self, name: str) -> bool:
        if name not in {each.name for each in await self.discarded()}:
            return False
        await self.delete(name)
        return True

    async def list(self) -> Sequence[SandboxSeen]:
        raise NotImplementedError

    async def discarded(self) -> Sequence[Discarded]:
        raise NotImplementedError

    async def delete(self, name: str) -> None:
        raise NotImplementedError

    async def names(self) -> Collection[str]:
        return {seen.name for seen in await self.list()}
