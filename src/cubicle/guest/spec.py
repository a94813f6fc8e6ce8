"""What a command is to be: the host's request, checked."""

from __future__ import annotations

import os

from .connection import Refused


class Spec:
    """What to run, as the host asked; anything odd is refused before a process exists."""

    def __init__(self, request: dict[str, object], home: str, env: dict[str, str]) -> None:
        argv = request.get("argv")
        if not isinstance(argv, list) or not argv or not all(isinstance(a, str) and "\0" not in a for a in argv):
            raise Refused("bad-request", "argv is a list of words without NUL")
        self.argv: list[str] = argv
        self.cwd = str(request.get("cwd") or home)
        more = request.get("env") or {}
        if not isinstance(more, dict):
            raise Refused("bad-request", "env is an object")
        self.env = {**env, **{str(k): str(v) for k, v in more.items()}}
        limit = request.get("timeout")
        self.timeout = float(limit) if isinstance(limit, (int, float)) else None
        size = request.get("pty")
        self.pty: tuple[int, int] | None = None
        if isinstance(size, list) and len(size) == 2:
            self.pty = (int(size[0]), int(size[1]))
        self.merge = bool(request.get("merge", True))
        self.stdin = bool(request.get("stdin", False)) or self.pty is not None
        self.id = str(request.get("id") or os.urandom(8).hex())
