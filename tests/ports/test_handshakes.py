"""What a visitor is told of a program that answers a WebSocket's handshake, or a request, in a way of its own."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.ports.conftest import CHAT, Ground, ground_on
from tests.support.process import free_port

pytestmark = pytest.mark.anyio
ground = ground_on("memory", "docker-runc")

ANSWERS = b"""
import base64, hashlib, socket, struct, sys, threading
def serve(sock):
    head = sock.recv(65536)
    while b"\\r\\n\\r\\n" not in head:
        head += sock.recv(65536)
    path = head.split()[1].decode()
    if path == "/body":
        sock.sendall(b"HTTP/1.1 403 No\\r\\nContent-Length: 1048576\\r\\n\\r\\n" + bytes(1048575))
    elif path == "/head":
        sock.sendall(b"HTTP/1.1 403 No\\r\\n")
        try:
            while True:
                sock.sendall(b"A: " + b"b" * 4000 + b"\\r\\n")
        except OSError:
            return
    elif path == "/reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        return
    elif path in ("/other", "/cookies"):
        sets = b"Set-Cookie: a=1; Domain=localhost\\r\\nSet-Cookie: cubicle-port=x\\r\\nSet-Cookie: b=2; Path=/\\r\\n"
        more = sets if path == "/cookies" else b"Sec-WebSocket-Protocol: nobody-asked\\r\\n"
        key = [line.split(b": ")[1] for line in head.split(b"\\r\\n") if line.lower().startswith(b"sec-websocket-key")][0]
        said = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        sock.sendall(b"HTTP/1.1 101 Yes\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: "
                     + said + b"\\r\\n" + more + b"\\r\\n")
    elif path == "/garbage":
        sock.sendall(b"SSH-2.0-OpenSSH\\r\\n\\r\\n")
    sock.recv(1)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
async def answers(ground: Ground) -> int:
    port = free_port()
    await ground.put(CHAT, "answers.py", ANSWERS)
    up = f"until : 2>/dev/null </dev/tcp/127.0.0.1/{port}; do sleep 0.05; done"
    await ground.bash(CHAT, f"python3 answers.py {port} >answers.log 2>&1 & {up}")
    return port


@pytest.mark.parametrize(
    ("path", "status"), [("/body", 403), ("/head", 502), ("/reset", 502), ("/other", 502), ("/garbage", 502)]
)
async def test_a_handshake_that_fails_is_told_at_once(ground: Ground, answers: int, path: str, status: int) -> None:
    """Without a wait for the body, which would be held until it is whole."""
    headers = {"Cookie": f"cubicle-port={ground.cookie(CHAT, answers)}"}
    uri = f"ws://{ground.host(CHAT, answers)}{path}"
    async with asyncio.timeout(10):
        with pytest.raises(InvalidStatus) as refused:
            await connect(uri, host="127.0.0.1", port=ground.port, additional_headers=headers, proxy=None)
    assert refused.value.response.status_code == status


async def test_the_cookies_that_a_program_sets_in_a_handshake_reach_the_visitor(ground: Ground, answers: int) -> None:
    """As those of any other answer: for this one name only, and none that is named like the service's."""
    headers = {"Cookie": f"cubicle-port={ground.cookie(CHAT, answers)}"}
    uri = f"ws://{ground.host(CHAT, answers)}/cookies"
    async with connect(uri, host="127.0.0.1", port=ground.port, additional_headers=headers, proxy=None) as client:
        assert client.response is not None
        assert client.response.headers.get_all("Set-Cookie") == ["a=1", "b=2; Path=/"]


async def test_nobody_there_is_told_apart_from_a_program_that_hangs_up(ground: Ground, answers: int) -> None:
    """What was sent once may have been done: only where nothing was sent is it said that it may be tried again."""
    async with ground.client(CHAT, answers) as client:
        for method in ("POST", "GET"):
            answer = await client.request(method, "/reset", content=b"once" if method == "POST" else None)
            assert answer.status_code == 502
            assert "Retry-After" not in answer.headers
    free = free_port()
    async with ground.client(CHAT, free) as client:
        answer = await client.post("/", content=b"once")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


async def test_an_address_that_is_none_is_refused(ground: Ground, answers: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", ground.port)
    lines = [
        f"GET /a\x0cb?cubicle-key={ground.token(CHAT, answers)} HTTP/1.1",
        f"Host: {ground.host(CHAT, answers)}",
        "Accept: text/html",
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode())
    assert (await reader.readline()).split()[1] == b"400"
    writer.close()
    assert "Traceback" not in ground.service.log()
