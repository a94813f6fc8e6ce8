"""MCP's older transport over HTTP, relayed: its events tell where to post, and that must be the relay too."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit, urlunsplit

_MAX_LENGTH = 64 * 1024
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class BadEndpoint(Exception):
    """A server names an address to post to that its credential must not be sent to, or none."""


class Endpoint:
    """Watches a server's events for the one that names the address to post to, and puts another in its place."""

    def __init__(self, server: str, instead: str) -> None:
        self.url = ""
        """Where to post, once it is known."""
        self._server = server
        self._instead = instead
        self._rest = b""

    def pass_on(self, chunk: bytes) -> bytes:
        """What may go on to the client now. Raises BadEndpoint."""
        if self.url:
            return chunk
        self._rest += chunk
        parts: list[bytes] = []
        start = 0
        while not self.url and (found := _END.search(self._rest, start)):
            parts.append(self._event(self._rest[start : found.end()]))
            start = found.end()
        self._rest = self._rest[start:]
        passed = b"".join(parts)
        if self.url:
            passed, self._rest = passed + self._rest, b""
        elif len(self._rest) > _MAX_LENGTH:
            raise BadEndpoint("it does not say where to post")
        return passed

    def _event(self, event: bytes) -> bytes:
        lines = [line.partition(":") for line in event.decode("utf-8", "replace").splitlines()]
        fields = {name: value.removeprefix(" ") for name, _, value in lines}
        if fields.get("event") != "endpoint":
            return event
        self.url = self._beside(fields.get("data", ""))
        return f"event: endpoint\ndata: {self._instead}\n\n".encode()

    def _beside(self, named: str) -> str:
        """The address that is named, which must be of the same server; its host is written as ours was."""
        try:
            own, meant = urlsplit(self._server), urlsplit(urljoin(self._server, named))
            same = (own.scheme, own.hostname, own.port) == (meant.scheme, meant.hostname, meant.port)
        except ValueError:
            same = False
        if not same:
            raise BadEndpoint("it wants posts at another host")
        return urlunsplit((own.scheme, own.netloc, meant.path, meant.query, ""))
