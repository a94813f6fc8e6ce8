"""HTTP through the proxy: the true curl in a true sandbox against a true server."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.network import NetworkMode
from cubicle.egress.policy import Policy
from cubicle.machine.machine import Machine
from tests.egress.conftest import OPEN, Audit, Behind, shell
from tests.egress.servers import Server, http_server

pytestmark = pytest.mark.anyio


REUSED = r"Re-?using existing"
"""How curls of different age say that a connection serves again."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "www").mkdir()
    with http_server(tmp_path / "www") as running:
        yield running


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Somebody listens there. A test beside this one may, but not for as long as this one needs it."""
    deadline = time.monotonic() + 100
    while True:
        try:
            holder = socket.create_server(("127.0.0.1", port))
            break
        except OSError:
            assert time.monotonic() < deadline, f"port {port} is never free"
            time.sleep(0.05)
    with holder:
        yield


async def curl(machine: Machine, arguments: str) -> str:
    return await shell(machine, f"curl -sS --max-time 60 {arguments}")


async def test_a_plain_request_arrives_as_the_server_expects_it(behind: Behind, server: Server, audit: Audit) -> None:
    async with behind() as machine:
        url = f"http://user:word@web.test:{server.port}/echo?a=b"
        answer = json.loads(await curl(machine, f"-H 'X-Mine: 1' -H 'Proxy-Authorization: x' '{url}'"))
    assert answer["path"] == "/echo?a=b"
    assert answer["headers"]["host"] == f"web.test:{server.port}"
    assert answer["headers"]["x-mine"] == "1"
    assert not [name for name in answer["headers"] if name.startswith("proxy") or "forward" in name or name == "via"]
    allowed, closed = audit.lines
    assert (allowed["event"], closed["event"]) == ("allowed", "closed")
    assert (allowed["host"], allowed["method"], allowed["path"]) == ("web.test", "GET", "/echo")
    assert (allowed["chat"], allowed["address"], allowed["protocol"]) == ("chat-1", "127.0.0.1", "http")
    assert closed["up"] > 100
    assert closed["down"] > 100
    assert "a=b" not in str(audit.text), "a query may hold a secret"


async def test_one_connection_of_the_caller_serves_many_requests(behind: Behind, server: Server) -> None:
    async with behind() as machine:
        base = f"http://web.test:{server.port}"
        output = await curl(machine, f"-v {base}/echo {base}/chunked {base}/nothing {base}/close {base}/echo 2>&1")
        head = await curl(machine, f"-v -I {base}/echo {base}/echo 2>&1")
    assert len(re.findall(REUSED, output)) == 4
    assert "one two three" in output
    assert "until the end" in output
    assert len(re.findall(REUSED, head)) == 1
    assert head.count("< content-length: ") == 2


@pytest.mark.parametrize("framing", ["", "-H 'Transfer-Encoding: chunked'", "-H 'Expect: 100-continue'"])
async def test_a_body_goes_up_whole(behind: Behind, server: Server, framing: str) -> None:
    size = 3_000_000
    async with behind() as machine:
        await shell(machine, f"head -c {size} /dev/zero > body")
        url = f"http://web.test:{server.port}/echo"
        answer = json.loads(await curl(machine, f"{framing} --data-binary @body {url}"))
    assert (answer["size"], answer["sha256"]) == (size, hashlib.sha256(bytes(size)).hexdigest())


@pytest.mark.parametrize("way", ["", "-p", "--socks5-hostname $DOOR"])
async def test_a_large_file_comes_down_whole(behind: Behind, server: Server, audit: Audit, way: str) -> None:
    size = 20_000_000
    async with behind() as machine:
        output = await curl(machine, f"{way} 'http://web.test:{server.port}/big?n={size}' | sha256sum")
    assert output.split()[0] == hashlib.sha256(bytes(size)).hexdigest()
    assert audit.of("closed")[0]["down"] > size
    assert audit.of("allowed")[0]["protocol"] == ("socks5" if "socks" in way else "connect" if way else "http")


async def test_one_side_may_finish_before_the_other(behind: Behind, server: Server) -> None:
    async with behind() as machine:
        output = await shell(
            machine,
            f"printf 'GET /echo HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n' |"
            f" timeout 60 curl -sS --max-time 60 -p -T - -N telnet://web.test:{server.port} </dev/stdin",
        )
    assert '"method": "GET"' in output


async def test_a_denied_request_says_which_rule_and_whom_to_ask(behind: Behind, audit: Audit) -> None:
    policy = Policy(NetworkMode.ALLOWLIST, contact="it@example.com")
    async with behind(policy) as machine:
        plain = await curl(machine, "-i http://web.test:81/secret")
        tunnel = await curl(machine, "-v https://web.test/ 2>&1")
        socks = await curl(machine, "--socks5-hostname $DOOR http://web.test/")
    assert plain.startswith("HTTP/1.1 403 Denied by rule 'mode allowlist'")
    assert "Content-Type: text/plain" in plain
    assert "X-Egress-Rule: mode allowlist" in plain
    assert "ask it@example.com for a rule that allows web.test:81" in plain
    assert "403 Denied by rule 'mode allowlist' of the sandbox's egress proxy; ask it@example.com" in tunnel
    assert "(97)" in socks
    assert [line["protocol"] for line in audit.of("denied")] == ["http", "connect", "socks5"]
    assert {line["rule"] for line in audit.lines} == {"mode allowlist"}
    assert not audit.of("allowed")


async def test_without_a_network_the_proxy_still_says_why(behind: Behind, server: Server, audit: Audit) -> None:
    async with behind(Policy(NetworkMode.NONE, OPEN.rules)) as machine:
        assert "sandboxes of this service have no network" in await curl(machine, f"http://web.test:{server.port}/")
        assert "mode none" in await curl(machine, "-v https://web.test/ 2>&1")
        assert "nothing leaves this sandbox" in await curl(machine, "http://$DOOR/")
    assert server.callers == 0
    assert len(audit.of("denied")) == 2


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
        "10.0.0.1",
        "0.0.0.0",
        "[64:ff9b::7f00:1]",
    ],
)
async def test_the_host_and_its_networks_stay_closed(behind: Behind, server: Server, audit: Audit, host: str) -> None:
    async with behind(Policy(NetworkMode.OPEN)) as machine:
        url = f"http://{host}:{server.port}/echo"
        for way in ("-x http://$DOOR", "-p -x http://$DOOR", "-x socks5h://$DOOR"):
            await curl(machine, f"--noproxy '' {way} {url}")
    assert server.callers == 0
    assert len(audit.of("denied")) == 3, audit.lines


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "017700000001", "127.1"])
async def test_an_address_in_disguise_is_refused(behind: Behind, server: Server, host: str) -> None:
    program = f"""
import os, socket
sock = socket.create_connection(("127.0.0.1", int(os.environ["http_proxy"].rpartition(":")[2])))
sock.sendall(b"GET http://{host}:{server.port}/echo HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
print(sock.recv(1000).decode())
"""
    async with behind() as machine:
        _, output = await machine.output(["python3", "-c", program], timeout=100)
    assert output.startswith(b"HTTP/1.1 400 ")
    assert server.callers == 0


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        ("GET https://web.test/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "use CONNECT"),
        ("GET ftp://web.test/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "use CONNECT"),
        ("CONNECT web.test HTTP/1.1\r\nHost: x\r\n\r\n", 400, "needs a host and a port"),
        ("CONNECT web.test:0 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "1 to 65535"),
        ("CONNECT web.test:99999 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "1 to 65535"),
        ("CONNECT we\xb2b.test:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400, ""),
        ("hello\r\n\r\n", 400, "not a request"),
        ("GET http://web.test:1/ HTTP/1.1\r\nHost: x\r\n\r\n", 502, "refused the connection"),
        ("GET http://nowhere.example/ HTTP/1.1\r\nHost: x\r\n\r\n", 502, "has no address"),
        ("GET http://web.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, ""),
        ("GET http://web.test/ HTTP/1.1\r\nHost: x\r\nX: " + "y" * 90_000 + "\r\n\r\n", 431, ""),
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 200, "egress proxy"),
    ],
)  # fmt: skip
async def test_what_cannot_be_passed_on_is_answered_in_words(
    behind: Behind, request_: str, status: int, said: str
) -> None:
    program = """
import os, socket, sys
sock = socket.create_connection(("127.0.0.1", int(os.environ["http_proxy"].rpartition(":")[2])))
sock.sendall(sys.stdin.buffer.read())
sock.shutdown(socket.SHUT_WR)
while data := sock.recv(10000): sys.stdout.buffer.write(data)
"""
    async with behind() as machine, machine.run(["python3", "-c", program], stdin=True, timeout=100) as process:
        await process.write(request_.encode("latin-1"))
        process.close_input()
        output = b"".join([chunk async for _, chunk in process.output])
    assert output.startswith(b"HTTP/1.1 %d " % status), output[:200]
    assert said in output.decode()


async def test_the_overview_shows_rules_and_no_secret(behind: Behind, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nname = "api"\nhosts = ["api.example.com"]\nports = [443]\ninject.X-Key = "hunter2"')
    rules.chmod(0o600)
    async with behind(Policy(NetworkMode.ALLOWLIST), rules=rules) as machine:
        overview = await curl(machine, "http://$DOOR/")
    assert "- allow: api.example.com; port 443; https; (credentials are added by the proxy) [api]" in overview
    assert "hunter2" not in overview


async def test_rules_hold_as_soon_as_they_are_written(
    behind: Behind, server: Server, tmp_path: Path, audit: Audit
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('mode = "none"')
    async with behind(OPEN, rules=rules) as machine:
        url = f"http://web.test:{server.port}/echo"
        assert "403" in await curl(machine, f"-i {url}")
        rules.write_text('mode = "open"')
        assert "200" in await curl(machine, f"-i {url}")
        rules.write_text('mode = "open"\n[[rules]]\nname = "no posts"\naction = "deny"\nmethods = ["POST"]')
        assert "200" in await curl(machine, f"-i {url}")
        assert "no posts" in await curl(machine, f"-i -d x {url}")
        assert "no posts" in await curl(machine, f"-v -p {url} 2>&1")
    assert [line["event"] for line in audit.lines if line["event"] != "closed"] == [
        *("denied", "allowed", "allowed", "denied", "denied")
    ]


async def test_method_and_path_decide_about_plain_requests(behind: Behind, server: Server, audit: Audit) -> None:
    what = {"hosts": ("web.test",), "methods": frozenset({"GET"}), "paths": ("/echo", "/public/*")}
    reading = replace(OPEN.rules[0], name="reading", **what)  # type: ignore[arg-type]
    base = f"http://web.test:{server.port}"
    async with behind(Policy(NetworkMode.ALLOWLIST, (reading,))) as machine:
        assert json.loads(await curl(machine, f"{base}/echo?a=b"))["path"] == "/echo?a=b"
        assert "Rule: mode allowlist" in await curl(machine, f"-d x {base}/echo")
        assert "Rule: mode allowlist" in await curl(machine, f"{base}/private")
        assert "Rule: mode allowlist" in await curl(machine, f"--path-as-is {base}/public/../private")
        assert "403 Denied" in await curl(machine, f"-v -p {base}/echo 2>&1")
    assert server.callers == 1
    assert [(line["event"], line.get("method")) for line in audit.lines if line["event"] != "closed"] == [
        *(("allowed", "GET"), ("denied", "POST"), ("denied", "GET"), ("denied", "GET"), ("denied", None))
    ]


async def test_a_denied_upload_still_gets_its_answer(behind: Behind, server: Server) -> None:
    async with behind(Policy(NetworkMode.NONE)) as machine:
        await shell(machine, "head -c 5000000 /dev/zero > body")
        output = await curl(machine, f"-i -H 'Expect:' --data-binary @body http://web.test:{server.port}/")
    assert "have no network" in output


async def test_the_port_of_the_proxy_may_be_taken(behind: Behind, server: Server) -> None:
    with taken(3128):
        async with behind() as machine:
            assert machine.environment["HTTP_PROXY"] != "http://127.0.0.1:3128"
            answer: dict[str, Any] = json.loads(await curl(machine, f"http://web.test:{server.port}/echo"))
    assert answer["method"] == "GET"
