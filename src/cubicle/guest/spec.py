"""What a command is to be: the host's request, and what the sandbox adds to it."""

from __future__ import annotations

import os

from .operations import Run


class Spec:
    """A request to run something, with what the sandbox adds to it."""

    def __init__(self, request: Run, home: str, env: dict[str, str]) -> None:
        self.argv = request.argv
        self.cwd = request.cwd or home
        self.env = {**env, **(request.env or {})}
        self.timeout = request.timeout
        self.pty = request.pty
        self.merge = request.merge
        self.stdin = request.stdin or self.pty is not None
        self.id = request.id or os.urandom(8).hex()
        self.keep = request.keep and request.id is not None
        self.unattended = request.unattended
