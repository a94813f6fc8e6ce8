"""Which of its names a server is asked for: the one that the rules judged, whatever the sandbox would like."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from cubicle.egress.policy import Target
from tests.egress.conftest import OPEN, Behind
from tests.egress.servers import Server
from tests.egress.ways import SECRET, WAYS, Way, authority, opened, redirected, server, trust

__all__ = ["authority", "server", "trust"]

pytestmark = pytest.mark.anyio
every_way = pytest.mark.parametrize("kind", WAYS)


def asked(said: bytes) -> dict[str, Any]:
    """What the server was asked, as it repeats it."""
    assert said.startswith(b"HTTP/1.1 200 "), said
    answer: dict[str, Any] = json.loads(said[said.index(b"{") :])
    return answer


@every_way
async def test_a_server_is_asked_for_the_name_that_was_judged(
    kind: str, behind: Behind, tmp_path: Path, trust: ssl.SSLContext, server: Server
) -> None:
    async with opened(kind, behind, tmp_path, server.port, trust) as way:
        for host in ("other.test", "other.test:80", f"other.test:{server.port}", "api.test:1", "127.0.0.1"):
            said = await way.say(request(way, f"Host: {host}\r\n"))
            if kind == "proxy":
                assert asked(said)["headers"]["host"] == way.host, "the address of the request is what counts"
            else:
                assert said.startswith(b"HTTP/1.1 421 "), (host, said)
                assert server.callers == 0


@every_way
async def test_a_name_may_be_written_in_any_way_and_by_whatever_headers(
    kind: str, behind: Behind, tmp_path: Path, trust: ssl.SSLContext, server: Server
) -> None:
    port = server.port
    async with opened(kind, behind, tmp_path, port, trust) as way:
        for headers in (f"hOsT: aPi.TeSt.:{port}\r\n", f"Host: {way.host}\r\nConnection: host, authorization\r\n"):
            seen = asked(await way.say(request(way, headers)))["headers"]
            assert (seen["host"], seen["authorization"]) == (way.host, SECRET)
        seen = asked(await way.say(f"GET {way.url('/echo')} HTTP/1.0\r\n\r\n".encode()))["headers"]
        assert seen["host"] == way.host, "HTTP/1.0 has no Host"


@every_way
async def test_two_hosts_are_refused(
    kind: str, behind: Behind, tmp_path: Path, trust: ssl.SSLContext, server: Server
) -> None:
    async with opened(kind, behind, tmp_path, server.port, trust) as way:
        for first, second in ((way.host, "other.test"), ("other.test", way.host), (way.host, way.host)):
            said = await way.say(request(way, f"Host: {first}\r\nHost: {second}\r\n"))
            assert said.startswith(b"HTTP/1.1 400 "), said
    assert server.callers == 0


@pytest.mark.parametrize("kind", ["captive"])
async def test_a_server_that_is_reached_by_address_is_asked_for_any_name(
    kind: str, behind: Behind, server: Server
) -> None:
    target = Target.parse("127.0.0.1", server.port)
    async with behind() as machine, redirected(machine, None, target, OPEN) as port:
        way = Way(kind, port, server.port, ssl.create_default_context())
        assert asked(await way.say(request(way, "Host: any.example\r\n")))["headers"]["host"] == "any.example"


def request(way: Way, headers: str) -> bytes:
    return f"GET {way.url('/echo')} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n".encode()
