"""Attacks of those who hold a link to one chat: its files, terminal and browser."""

from __future__ import annotations

import asyncio

from tests.attacks.attacker import Attacker, once
from tests.attacks.client import Connection, close_code, frame, request
from tests.attacks.table import attack

TERMINAL = "/terminal/{}/ws"
DEVTOOLS = "/browser/{}/devtools/browser/a"
ECHO = r"""
import base64, hashlib, socket, sys, threading
flood = sys.argv[2] == "flood"
def serve(peer):
    head = b""
    while b"\r\n\r\n" not in head:
        head += peer.recv(65536)
    key = next(l.split(b":")[1].strip() for l in head.split(b"\r\n") if l.lower().startswith(b"sec-websocket-key"))
    proof = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    offer = [l for l in head.split(b"\r\n") if l.lower().startswith(b"sec-websocket-protocol")]
    answer = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Accept: " + proof]
    peer.sendall(b"\r\n".join([*answer, *offer, b"", b""]))
    if flood:
        while True:
            peer.sendall((b"\x82\x7e\x10\x00" + b"0" * 4096) * 16)
    while peer.recv(1 << 20):
        peer.sendall(b"\x82\x02" + b"0a")
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


@once
async def start_backends(attacker: Attacker) -> None:
    """A program behind the terminal's port that takes what comes, and one behind the browser's that sends all it can."""
    await attacker.bash(f"cat >/tmp/echo.py <<'EOF'\n{ECHO}\nEOF")
    for port, what in ((7681, "echo"), (9222, "flood")):
        await attacker.bash(f"setsid python3 /tmp/echo.py {port} {what} >/dev/null 2>&1 </dev/null & sleep 0.5")


async def sockets(
    attacker: Attacker, width: int, data: bytes, path: str = TERMINAL, *, read: bool = True, opening: bytes = b""
) -> None:
    """So many WebSockets that send this again and again; one that is closed is opened anew."""

    async def one() -> None:
        while attacker.left:
            await one_socket()

    async def one_socket() -> None:
        connection = await attacker.socket(path.format(attacker.chat), opening)
        if connection is None:
            return
        reading = asyncio.ensure_future(close_code(connection) if read else asyncio.sleep(10**6, ""))
        try:
            while attacker.left and not reading.done():
                async with asyncio.timeout(attacker.left + 0.1):
                    await connection.send(data)
                await asyncio.sleep(0)
            attacker.seen[await reading if reading.done() else "open"] += 1
        except TimeoutError:
            attacker.seen["held back"] += 1
        except OSError:
            attacker.seen[await reading if read else "closed"] += 1
        finally:
            reading.cancel()
            connection.close()

    await attacker.at_once(width, one)


ENDS = "open|held back|closed|1009|1002|1007|1008|1011|1001"
WITH = {"prepare": start_backends}


@attack(ENDS, "no answer", **WITH)  # type: ignore[arg-type]
async def terminal_input(attacker: Attacker) -> None:
    """Input of 64 KB a message, as fast as it is taken."""
    await sockets(attacker, 8, frame(2, b"0" * 65_536) * 4)


@attack(ENDS, **WITH)  # type: ignore[arg-type]
async def terminal_keys(attacker: Attacker) -> None:
    """Single keys, thousands in each packet."""
    await sockets(attacker, 8, frame(2, b"0a") * 5_000)


@attack(ENDS, **WITH)  # type: ignore[arg-type]
async def socket_pings(attacker: Attacker) -> None:
    await sockets(attacker, 8, frame(9, b"a" * 100) * 2_000)


@attack("1009|closed", "open|held back", **WITH)
async def giant_frame(attacker: Attacker) -> None:
    """A frame that says it is 2^62 bytes long, and comes."""
    await sockets(attacker, 4, frame(2, b"a" * 100_000, claimed=2**62))


@attack("1009|closed", "open|held back", **WITH)
async def large_frames(attacker: Attacker) -> None:
    """Messages of 60 MB: below the server's limit, above the terminal's."""
    await sockets(attacker, 3, frame(2, b"a" * attacker.size(60_000_000)))


@attack("1009|closed|1002", "open|held back", **WITH)
async def endless_fragments(attacker: Attacker) -> None:
    """One message in parts of a byte, without end."""

    async def one() -> None:
        while attacker.left:
            connection = await attacker.socket(TERMINAL.format(attacker.chat))
            if connection is not None:
                await fragments(attacker, connection)

    await attacker.at_once(4, one)


async def fragments(attacker: Attacker, connection: Connection) -> None:
    reading = asyncio.ensure_future(close_code(connection))
    try:
        await connection.send(frame(2, b"0", final=False))
        while attacker.left and not reading.done():
            async with asyncio.timeout(attacker.left + 0.1):
                await connection.send(frame(0, b"a", final=False) * 10_000)
        attacker.seen[await reading if reading.done() else "open"] += 1
    except (TimeoutError, OSError):
        attacker.seen["closed" if reading.done() else "held back"] += 1
    finally:
        reading.cancel()
        connection.close()


@attack(ENDS, **WITH)  # type: ignore[arg-type]
async def empty_fragments(attacker: Attacker) -> None:
    """Frames without a byte in them."""
    await sockets(attacker, 4, frame(2, b"", final=False) + frame(0, b"", final=False) * 5_000 + frame(0, b""))


@attack("1007|closed", "open", **WITH)
async def broken_text(attacker: Attacker) -> None:
    """Text that is no UTF-8."""
    await sockets(attacker, 8, frame(1, b"\xff" * 60_000))


@attack("1002|closed", "open", **WITH)
async def wrong_frames(attacker: Attacker) -> None:
    """Opcodes that there are none of, and long control frames."""
    await sockets(attacker, 8, frame(11, b"a") + frame(9, b"a" * 60_000))


@attack(ENDS, **WITH)  # type: ignore[arg-type]
async def backend_output_never_read(attacker: Attacker) -> None:
    """The browser's end floods; the client reads nothing."""
    await sockets(attacker, 20, frame(9), DEVTOOLS, read=False)


@attack(ENDS, **WITH)  # type: ignore[arg-type]
async def backend_output_read(attacker: Attacker) -> None:
    """The browser's end floods, and all of it is read."""
    await sockets(attacker, 4, b"", DEVTOOLS)


@attack("101|open|429|4429|1013|1008|closed", f"{ENDS}|no answer", **WITH)
async def many_sockets(attacker: Attacker) -> None:
    """300 WebSockets to one terminal."""
    await sockets(attacker, 300, frame(9))


@attack(f"{ENDS}|4404|4503|4409|1011")
async def live_messages(attacker: Attacker) -> None:
    """Messages of the live view where no browser is."""
    await sockets(attacker, 20, frame(1, b'{"type":"ack","seq":1}') * 500, "/browser/{}/live")


@attack("200|429", "404|409|no answer")
async def events_never_read(attacker: Attacker) -> None:
    """300 streams of the chat's events."""
    data = request("GET", f"/api/chats/{attacker.chat}/events?key={attacker.link}")
    await attacker.hold(300, data)
    attacker.seen["200"] += attacker.seen.pop("waiting", 0) + attacker.seen.pop("closed", 0)


@attack("200|404|429")
async def listings_by_link(attacker: Attacker) -> None:
    await attacker.flood(20, request("GET", f"/files/{attacker.chat}/?key={attacker.link}"))


@attack("200|404|429|403|401")
async def files_by_capability(attacker: Attacker) -> None:
    await attacker.flood(20, request("GET", f"/raw/{attacker.capability}/a.txt"))


@attack("200|404|429")
async def previews(attacker: Attacker) -> None:
    await attacker.flood(20, request("GET", f"/preview/{attacker.chat}/?key={attacker.link}", ["Accept: text/html"]))


@attack("200|206|416|404|429|400")
async def ranges_of_a_file(attacker: Attacker) -> None:
    ranges = "Range: bytes=" + ",".join(f"{n}-{n}" for n in range(0, 1500, 2))
    data = request("GET", f"/files/{attacker.chat}/a.txt?key={attacker.link}", [ranges])
    await attacker.flood(20, data)


@attack("200|429|404", "waiting|closed", prepare=lambda a: _large(a))
async def downloads_never_read(attacker: Attacker) -> None:
    """100 downloads of a file of 50 MB that nobody reads."""
    await attacker.hold(100, request("GET", f"/files/{attacker.chat}/large?key={attacker.link}"))
    attacker.seen["200"] += attacker.seen.pop("waiting", 0)


@once
async def _large(attacker: Attacker) -> None:
    await attacker.bash(
        "head -c 50000000 /dev/zero >/mnt/user-data/outputs/large; echo a >/mnt/user-data/outputs/a.txt"
    )
