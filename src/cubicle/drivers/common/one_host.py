"""What is the same for all drivers whose sandboxes nobody but the service itself keeps, moves or reaches."""

from __future__ import annotations


class OneHost:
    """Part of the Driver protocol (sandbox/driver.py)."""

    async def take_blank(self, owner: str) -> str | None:
        return None

    async def take_over(self, owner: str) -> None:
        """Connections end with the process that had them."""

    async def address(self, name: str) -> tuple[str, int] | None:
        return None

    async def why_ended(self, name: str) -> str:
        return ""
