"""Attacks through a port of a sandbox: of its visitors, and of the program that answers them."""

from __future__ import annotations

import asyncio
import json
import secrets
from urllib.parse import parse_qs, urlsplit

from tests.attacks.attacker import Attacker, Preview, once
from tests.attacks.client import frame, request, upgrade
from tests.attacks.table import attack
from tests.attacks.with_link import ENDS, sockets
from tests.support.free_ports import free_port

PROGRAM = r"""
import base64, hashlib, socket, sys, threading
ZEROS = bytes(1 << 16)
OK = b"HTTP/1.1 200 OK\r\n"
SMALL = OK + b"Content-Length: 5\r\n\r\nhello"
ENDLESS = {
    "stream": (OK + b"Connection: close\r\n\r\n", ZEROS),
    "large": (OK + b"Content-Length: 1000000000000\r\n\r\n", ZEROS),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 10_000),
    "interim": (b"", b"HTTP/1.1 100 a\r\n\r\n" * 3_000),
}
WHOLE = {
    "small": SMALL,
    "lines": OK + b"Content-Length: 0\r\n" + b"a:\r\n" * 14_000 + b"\r\n",
    "garbage": bytes(range(256)) * 250,
}
def headers_of(head):
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    return {name.strip().lower(): value.strip() for name, _, value in lines}
def accept(peer, headers):
    proof = hashlib.sha1(headers[b"sec-websocket-key"] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    lines = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade"]
    peer.sendall(b"\r\n".join([*lines, b"Sec-WebSocket-Accept: " + base64.b64encode(proof), b"", b""]))
def serve(peer):
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            more = peer.recv(1 << 16)
            if not more:
                return
            data = (data + more)[-100_000:]
        head, _, data = data.partition(b"\r\n\r\n")
        headers, what = headers_of(head), head.split(b" ")[1].decode("latin-1").strip("/")
        if what in ENDLESS:
            first, again = ENDLESS[what]
            peer.sendall(first)
            while True:
                peer.sendall(again)
        if what in WHOLE:
            peer.sendall(WHOLE[what])
        elif what == "take":
            left = int(headers[b"content-length"]) - len(data)
            while left > 0 and (more := peer.recv(1 << 20)):
                left -= len(more)
            data = b""
            peer.sendall(SMALL)
        elif what == "frames":
            accept(peer, headers)
            while True:
                peer.sendall(b"\x82\x01a" * 20_000)
        elif what == "echo":
            accept(peer, headers)
            while peer.recv(1 << 20):
                peer.sendall(b"\x82\x02ab")
            return
        else:  # it never answers
            while peer.recv(1 << 16):
                pass
            return
def guarded(peer):
    try:
        with peer:
            serve(peer)
    except OSError:
        pass
server = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024)
while True:
    threading.Thread(target=guarded, args=(server.accept()[0],), daemon=True).start()
"""


@once
async def start_program(attacker: Attacker) -> None:
    port = free_port()
    await attacker.bash(f"cat >/tmp/port-program.py <<'EOF'\n{PROGRAM}\nEOF")
    up = f"until : 2>/dev/null </dev/tcp/127.0.0.1/{port}; do sleep 0.05; done"
    await attacker.bash(
        f"setsid nice -n 10 python3 /tmp/port-program.py {port} >/tmp/port-program.log 2>&1 </dev/null & {up}"
    )
    status, body = await attacker.ask(request("GET", f"/api/chats/{attacker.chat}/ports", [attacker.bearer]), 60)
    assert status == "200", (status, body)
    (row,) = [row for row in json.loads(body)["ports"] if row["port"] == port]
    link = urlsplit(row["link"])
    attacker.preview = Preview(port, link.netloc, parse_qs(link.query)["cubicle-key"][0])


def preview_of(attacker: Attacker) -> Preview:
    assert attacker.preview is not None
    return attacker.preview


def visit(attacker: Attacker, path: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    """A request to the program by the key of its link."""
    seen = preview_of(attacker)
    return request(method, path, [f"X-Cubicle-Key: {seen.key}", *headers], body, host=seen.host)


def opening(attacker: Attacker, path: str) -> bytes:
    seen = preview_of(attacker)
    return upgrade(path, f"X-Cubicle-Key: {seen.key}", host=seen.host)


async def read_on(attacker: Attacker, width: int, path: str) -> None:
    """So many visitors who read an answer that has no end."""

    async def one() -> None:
        connection = await attacker.connect()
        status = "closed"
        try:
            await connection.send(visit(attacker, path))
            status = await connection.status()
            while attacker.left and status == "200":
                async with asyncio.timeout(attacker.left):
                    if not await connection.reader.read(1 << 20):
                        break
        except (TimeoutError, OSError):
            pass  # the time is over, or the service ended it: what counts is how it began
        finally:
            attacker.seen[status] += 1
            connection.close()

    await attacker.at_once(width, one)


@attack("200|429", "no answer", prepare=start_program)
async def port_requests(attacker: Attacker) -> None:
    """Small requests, as fast as they are answered."""
    await attacker.flood(20, visit(attacker, "/small"))


@attack("200|429", "closed|no answer", prepare=start_program)
async def port_new_connections(attacker: Attacker) -> None:
    """The same, each on a connection of its own."""
    data = visit(attacker, "/small")
    await attacker.repeat(20, lambda: attacker.once(data))


@attack("waiting|closed", prepare=start_program)
async def port_pipeline(attacker: Attacker) -> None:
    """Hundreds of requests in each packet; nobody reads the answers."""
    await attacker.hold(50, visit(attacker, "/small") * 200)


@attack("200|429", "no answer|closed", prepare=start_program)
async def port_endless_answers(attacker: Attacker) -> None:
    await read_on(attacker, 8, "/stream")


@attack("200|429", "no answer|closed", prepare=start_program)
async def port_tiny_chunks(attacker: Attacker) -> None:
    """Answers in chunks of a byte."""
    await read_on(attacker, 8, "/chunks")


@attack("200|429", "no answer|closed", prepare=start_program)
async def port_large_answers(attacker: Attacker) -> None:
    """Those that the kernel moves."""
    await read_on(attacker, 8, "/large")


@attack("waiting|closed", prepare=start_program)
async def port_answers_never_read(attacker: Attacker) -> None:
    await attacker.hold(100, visit(attacker, "/stream"))


@attack("waiting|closed", prepare=start_program)
async def port_large_answers_never_read(attacker: Attacker) -> None:
    await attacker.hold(50, visit(attacker, "/large"))


@attack("waiting|closed", prepare=start_program)
async def port_never_answers(attacker: Attacker) -> None:
    """300 visitors of a program that says nothing."""
    await attacker.hold(300, visit(attacker, "/nothing"))


@attack("502|429", "no answer", prepare=start_program)
async def port_many_header_lines(attacker: Attacker) -> None:
    await attacker.flood(10, visit(attacker, "/lines"))


@attack("502|429", "no answer", prepare=start_program)
async def port_interim_answers(attacker: Attacker) -> None:
    """Interim answers without end."""
    await attacker.flood(10, visit(attacker, "/interim"))


@attack("502|429", "no answer", prepare=start_program)
async def port_garbage(attacker: Attacker) -> None:
    """Answers that are no HTTP."""
    await attacker.flood(10, visit(attacker, "/garbage"))


@attack("200|429", "closed|no answer", prepare=start_program)
async def port_uploads(attacker: Attacker) -> None:
    """Bodies of 50 MB, eight at a time."""
    data = visit(attacker, "/take", method="POST", body=bytes(attacker.size(50_000_000)))
    await attacker.repeat(8, lambda: attacker.once(data))


@attack("503|429", "no answer", prepare=start_program)
async def port_where_nothing_listens(attacker: Attacker) -> None:
    """Each request dials anew, by the tenant's key."""
    seen = preview_of(attacker)
    host = f"1-{seen.host.partition('-')[2]}"
    await attacker.flood(20, request("GET", "/", [attacker.bearer], host=host))


@attack("404|429", "no answer", prepare=start_program)
async def port_unknown_names(attacker: Attacker) -> None:
    """Names of no chat, each another one, by the key of a tenant."""
    behind = preview_of(attacker).host.partition(".")[2]
    names = [f"80-{secrets.token_hex(16)}.{behind}" for _ in range(1000)]
    await attacker.flood(20, *(request("GET", "/", [attacker.bearer], host=name) for name in names))


@attack("401|429", "no answer", prepare=start_program)
async def port_wrong_links(attacker: Attacker) -> None:
    """Keys of links that nobody signed."""
    host = preview_of(attacker).host
    keys = [f"9999999999.{secrets.token_urlsafe(60)}" for _ in range(1000)]
    await attacker.flood(20, *(request("GET", f"/?cubicle-key={key}", host=host) for key in keys))


@attack("400|404", "no answer|closed", prepare=start_program)
async def port_wrong_hosts(attacker: Attacker) -> None:
    """Hosts that nearly are names of ports."""
    host = preview_of(attacker).host
    wrong = (f"x.{host}", f"0{host}", f"{host}:1", "a." * 2000 + "localhost", f"{host}, {host}")
    await attacker.flood(20, *(request("GET", "/", host=each) for each in wrong))


@attack(ENDS, "429", prepare=start_program)
async def port_socket_keys(attacker: Attacker) -> None:
    """Small messages, thousands in each packet."""
    await sockets(attacker, 8, frame(2, b"ab") * 5_000, opening=opening(attacker, "/echo"))


@attack(ENDS, "429|1013", prepare=start_program)
async def port_socket_large(attacker: Attacker) -> None:
    """Messages of 60 MB, in frames of 4 MB."""
    part = bytes(min(attacker.size(60_000_000), 4_000_000))
    middle = frame(0, part, final=False) * (attacker.size(60_000_000) // len(part))
    data = frame(2, part, final=False) + middle + frame(0, part)
    await sockets(attacker, 3, data, opening=opening(attacker, "/echo"))


@attack("1009|closed", "open|held back|429", prepare=start_program)
async def port_socket_giant_frame(attacker: Attacker) -> None:
    """A frame that says it is 2^62 bytes long, and comes."""
    await sockets(attacker, 4, frame(2, b"a" * 100_000, claimed=2**62), opening=opening(attacker, "/echo"))


@attack(ENDS, "429", prepare=start_program)
async def port_socket_flood_read(attacker: Attacker) -> None:
    """The program sends messages of a byte, and all of them are read."""
    await sockets(attacker, 4, b"", opening=opening(attacker, "/frames"))


@attack(ENDS, "429", prepare=start_program)
async def port_socket_flood_never_read(attacker: Attacker) -> None:
    await sockets(attacker, 20, frame(9), read=False, opening=opening(attacker, "/frames"))


@attack(ENDS, "429|1013|1000", prepare=start_program)
async def port_forwards(attacker: Attacker) -> None:
    """Plain TCP connections to the program, by the API."""
    path = f"/api/chats/{{}}/ports/{preview_of(attacker).port}/tcp"
    await sockets(attacker, 8, frame(2, bytes(65_536)) * 4, path)


@attack("200|429", "404|409|no answer", prepare=start_program)
async def port_events_never_read(attacker: Attacker) -> None:
    """300 streams of what listens."""
    await attacker.hold(300, request("GET", f"/api/chats/{attacker.chat}/ports/events?key={attacker.link}"))
    attacker.seen["200"] += attacker.seen.pop("waiting", 0) + attacker.seen.pop("closed", 0)
