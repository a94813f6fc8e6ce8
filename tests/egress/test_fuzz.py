"""Bytes that nobody means, through a true guest at a true proxy: it answers or hangs up, and goes on."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cubicle.core.network import NetworkMode
from cubicle.egress.policy import Policy, Rule
from cubicle.egress.upstream_connections import EgressLimits
from tests.egress.conftest import OPEN, Audit, Behind, shell
from tests.egress.servers import Server, http_server

pytestmark = pytest.mark.anyio

# Sends each of its input's payloads on a connection of its own, many at once, and says what came back.
CLIENT = r"""
import json, os, socket, sys
from concurrent.futures import ThreadPoolExecutor
proxy = int(os.environ["http_proxy"].rpartition(":")[2])
def send(payload):
    with socket.create_connection(("127.0.0.1", proxy)) as sock:
        sock.settimeout(60)
        got = b""
        try:
            sock.sendall(bytes.fromhex(payload))
            sock.shutdown(socket.SHUT_WR)
            while len(got) < 2000 and (data := sock.recv(2000)):
                got += data
        except ConnectionError:
            pass
        except TimeoutError:
            got = b"HUNG"
        return got.hex()
with ThreadPoolExecutor(16) as pool:
    print(json.dumps(list(pool.map(send, json.load(sys.stdin)))))
"""
ANSWERS = re.compile(rb"(?:\x05(?:\xff|\x00(?:\x05[\x00-\x08]\x00\x01.{6}.*)?)?|HTTP/1\.1 [2-5]\d\d .*)?", re.DOTALL)
ODD = [
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\0",
        b"\xff",
        b" ",
        b"\t",
        b":",
        b"/",
        b"@",
        b"%00",
        b"..",
        b"[",
        b"]",
        b"\xc2\xb2",
        b"#",
    ),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Upgrade: x\r\n"),
    *(b"Connection: close, host\r\n", b"Expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/2.0", b"\x05", b"\x16\x03\x01"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "www").mkdir()
    with http_server(tmp_path / "www") as running:
        yield running


def seeds(port: int) -> list[bytes]:
    name = b"web.test"
    number = port.to_bytes(2, "big")
    return [
        b"GET http://web.test:%d/echo HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n" % port,
        b"POST http://web.test:%d/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello" % port,
        b"POST http://web.test:%d/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        % port,
        b"CONNECT web.test:%d HTTP/1.1\r\nHost: x\r\n\r\nGET /echo HTTP/1.0\r\n\r\n" % port,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + number + b"GET /echo HTTP/1.0\r\n\r\n",
        b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01" + number + b"GET /echo HTTP/1.0\r\n\r\n",
    ]


def bend(dice: random.Random, seed: bytes) -> bytes:
    """One to four small changes."""
    data = bytearray(seed)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(5):
            case 0:
                data[at:at] = dice.choice(ODD)
            case 1:
                del data[at : at + dice.randint(1, 8)]
            case 2:
                data[at : at + 1] = bytes([dice.randrange(256)])
            case 3:
                data = data[:at]
            case _:
                data[at:at] = data[: dice.randint(0, 40)]
    return bytes(data)


async def test_any_bytes_are_answered_or_dropped(
    behind: Behind, server: Server, audit: Audit, caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(7)
    payloads = seeds(server.port)
    payloads += [bend(dice, dice.choice(seeds(server.port))) for _ in range(500)]
    payloads += [dice.randbytes(dice.randint(1, 300)) for _ in range(50)]
    async with behind(OPEN, limits=EgressLimits(idle=40, silent=30, handshake=40)) as machine:
        async with machine.run(["python3", "-c", CLIENT], stdin=True, timeout=100) as process:
            await process.write(json.dumps([payload.hex() for payload in payloads]).encode())
            process.close_input()
            output = b"".join([chunk async for _, chunk in process.output])
        assert '"GET"' in await shell(machine, f"curl -sS http://web.test:{server.port}/echo"), "the proxy goes on"
    answers = [bytes.fromhex(text) for text in json.loads(output)]
    assert len(answers) == len(payloads)
    odd = [(p, a) for p, a in zip(payloads, answers, strict=True) if not ANSWERS.fullmatch(a) and b"HTTP/1." not in a]
    assert odd == []
    assert sum(b" 200 " in answer for answer in answers[:7]) == 7, "the seeds themselves are fine"
    assert not [record for record in caplog.records if record.exc_info], caplog.text
    assert len(audit.of("allowed")) == len(audit.of("closed"))


async def test_no_bytes_get_around_a_rule(behind: Behind, server: Server, audit: Audit) -> None:
    dice = random.Random(8)
    only = Policy(NetworkMode.ALLOWLIST, (Rule("one", hosts=("other.test",), networks=OPEN.rules[0].networks),))
    payloads = [bend(dice, dice.choice(seeds(server.port))) for _ in range(300)]
    limits = EgressLimits(idle=40, silent=30, handshake=40)
    async with (
        behind(only, limits=limits) as machine,
        machine.run(["python3", "-c", CLIENT], stdin=True, timeout=100) as process,
    ):
        await process.write(json.dumps([payload.hex() for payload in payloads]).encode())
        process.close_input()
        async for _ in process.output:
            pass
    assert server.callers == 0
    assert audit.of("denied")
    assert not audit.of("allowed")
