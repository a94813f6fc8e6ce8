"""How far the sandboxes reach: the setting NETWORK."""

from __future__ import annotations

from enum import StrEnum


class NetworkMode(StrEnum):
    """The values of EGRESS."""

    OPEN = "open"
    ALLOWLIST = "allowlist"
    NONE = "none"
