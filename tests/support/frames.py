"""Frames of the wire as a test wants them, be they right or wrong."""

from __future__ import annotations

import json

from cubicle.guest import wire


def message(number: int, kind: int, /, **fields: object) -> bytes:
    """One frame whose payload is this JSON object."""
    return wire.frame(number, kind, json.dumps(fields, separators=(",", ":")).encode())
