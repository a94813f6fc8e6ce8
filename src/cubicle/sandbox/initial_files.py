"""What lies in the skills folder of every new sandbox, where a driver can put it there without starting the sandbox."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InitialFile:
    path: str
    """Within the folder."""
    content: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class InitialFiles:
    """Files of the sandbox's root, which everyone in it may read."""

    version: str
    """Another text when other files are meant."""
    read: Callable[[], Iterable[InitialFile]]
    """Blocking, a file at a time. Raises OSError or ValueError if they are no longer what they were."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.version.encode()).hexdigest()[:16]


InitialSource = Callable[[], InitialFiles | None]
"""What a sandbox that is made now gets; blocking. None: nothing."""


def nothing() -> InitialFiles | None:
    return None
