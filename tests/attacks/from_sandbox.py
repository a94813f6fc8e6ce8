"""Attacks of what runs in a sandbox, by the connections that it has: the egress proxy and its own output."""

from __future__ import annotations

from tests.attacks.attacker import Attacker, once
from tests.attacks.table import attack

FLOOD = r"""
import collections, os, socket, sys, threading, time, urllib.parse
seconds, width, what = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
proxy = urllib.parse.urlsplit(os.environ.get("HTTP_PROXY") or os.environ["http_proxy"])
ends, seen = time.monotonic() + seconds, collections.Counter()
DATA = {
    "denied": b"GET http://denied.example/%s HTTP/1.1\r\nHost: denied.example\r\n\r\n" % (b"a" * 100),
    "connect": b"CONNECT denied.example:443 HTTP/1.1\r\nHost: denied.example\r\n\r\n",
    "headers": b"GET http://denied.example/ HTTP/1.1\r\n" + b"X-A: b\r\n" * 100_000,
    "value": b"GET http://denied.example/ HTTP/1.1\r\nX-A: " + b"b" * 5_000_000,
    "url": b"GET http://denied.example/" + b"a" * 5_000_000,
    "host": b"CONNECT " + b"a." * 30_000 + b":443 HTTP/1.1\r\n\r\n",
    "chunks": b"POST http://denied.example/ HTTP/1.1\r\nHost: denied.example\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 200_000,
    "pipeline": b"GET http://denied.example/ HTTP/1.1\r\nHost: denied.example\r\n\r\n" * 10_000,
    "body": b"POST http://denied.example/ HTTP/1.1\r\nHost: denied.example\r\nContent-Length: 50000000\r\n\r\n" + bytes(20_000_000),
    "garbage": bytes(range(256)) * 4_000,
    "socks": b"\5\1\0\5\1\0\3\xff" + b"a" * 255 + b"\1\xbb",
    "socks4": b"\4\1\1\xbb\0\0\0\1" + b"a" * 100_000,
    "slow": b"GET http://den", "idle": b"",
    "names": b"CONNECT %d.does-not-exist.invalid:443 HTTP/1.1\r\nHost: a\r\n\r\n",
}
def refused(peer):  # who takes no more of a body has answered before
    peer.settimeout(0.1)
    try:
        return peer.recv(100)
    except OSError:
        return b"HTTP/1.1 late "
def one():
    tries = 0
    while not tries or time.monotonic() < ends:  # once at least: a busy machine may let it begin late
        tries += 1
        try:
            with socket.create_connection((proxy.hostname, proxy.port), timeout=min(5, max(0.5, seconds))) as peer:
                data = DATA[what] % time.monotonic_ns() if what == "names" else DATA[what]
                try:
                    peer.sendall(data)
                    if what in ("slow", "idle"):
                        while time.monotonic() < ends:
                            time.sleep(0.05); peer.sendall(b"i" if what == "slow" else b"")
                        seen["waiting"] += 1
                        return
                    got = peer.recv(100)
                except (ConnectionError, TimeoutError) as error:
                    got = b"HTTP/1.1 closed " if isinstance(error, ConnectionError) else refused(peer)
                seen[(got.split(b" ") + [b""])[1].decode("latin-1") if got.startswith(b"HTTP") else "closed"] += 1
        except OSError:
            seen["closed"] += 1
threads = [threading.Thread(target=one) for _ in range(width)]
[t.start() for t in threads]; [t.join() for t in threads]
print("SEEN " + " ".join(f"{k}={v}" for k, v in seen.items()) + " END")
"""


@once
async def install(attacker: Attacker) -> None:
    await attacker.bash(f"cat >/tmp/flood.py <<'EOF'\n{FLOOD}\nEOF")


async def flood(attacker: Attacker, width: int, what: str) -> None:
    """The program in the sandbox does it, and tells what it got."""
    said = await attacker.bash(f"nice -n 10 python3 /tmp/flood.py {attacker.seconds} {width} {what} 2>&1")
    found = said.partition("SEEN ")[2].partition(" END")[0]
    assert found, said
    for pair in found.split():
        name, _, count = pair.partition("=")
        attacker.seen[name] += int(count)


REFUSED = "403|400|407|431|414|413|429|502|503|504|closed"


@attack(REFUSED, prepare=install)
async def denied_requests(attacker: Attacker) -> None:
    """Requests that the policy refuses: each is a line of the audit."""
    await flood(attacker, 20, "denied")


@attack(REFUSED, prepare=install)
async def denied_tunnels(attacker: Attacker) -> None:
    await flood(attacker, 20, "connect")


@attack(REFUSED, "late", prepare=install)
async def proxy_endless_headers(attacker: Attacker) -> None:
    await flood(attacker, 10, "headers")


@attack(REFUSED, "late", prepare=install)
async def proxy_giant_header(attacker: Attacker) -> None:
    await flood(attacker, 10, "value")


@attack(REFUSED, "late", prepare=install)
async def proxy_giant_url(attacker: Attacker) -> None:
    await flood(attacker, 10, "url")


@attack(REFUSED, "late", prepare=install)
async def proxy_giant_host(attacker: Attacker) -> None:
    await flood(attacker, 10, "host")


@attack(REFUSED, "late", prepare=install)
async def proxy_tiny_chunks(attacker: Attacker) -> None:
    await flood(attacker, 10, "chunks")


@attack(REFUSED, "late", prepare=install)
async def proxy_large_body(attacker: Attacker) -> None:
    await flood(attacker, 10, "body")


@attack(REFUSED, "late", prepare=install)
async def proxy_garbage(attacker: Attacker) -> None:
    await flood(attacker, 10, "garbage")


@attack(REFUSED, "late", prepare=install)
async def socks_flood(attacker: Attacker) -> None:
    await flood(attacker, 20, "socks")


@attack(REFUSED, "late", prepare=install)
async def socks4_flood(attacker: Attacker) -> None:
    await flood(attacker, 10, "socks4")


@attack(f"{REFUSED}|waiting", prepare=install)
async def proxy_slow(attacker: Attacker) -> None:
    """300 requests that never get whole."""
    await flood(attacker, 300, "slow")


@attack(f"{REFUSED}|waiting", prepare=install)
async def proxy_idle(attacker: Attacker) -> None:
    await flood(attacker, 300, "idle")


@attack(REFUSED, "late", prepare=install)
async def unknown_names(attacker: Attacker) -> None:
    """Names that have to be looked up, each another one."""
    await flood(attacker, 50, "names")


@attack("done")
async def background_output(attacker: Attacker) -> None:
    """Programs that write to the output of a command that is long over."""
    await attacker.bash(f"for n in 1 2 3 4; do (timeout {attacker.seconds} yes &) ; done; sleep {attacker.seconds}")
    attacker.seen["done"] += 1


@attack("done")
async def output_of_escapes(attacker: Attacker) -> None:
    """Control sequences and broken UTF-8, as fast as they come."""
    await attacker.bash(f"timeout {attacker.seconds} yes $'\\x1b[31m\\xff\\xfe\\xc3'; true")
    attacker.seen["done"] += 1


@attack("done")
async def many_processes(attacker: Attacker) -> None:
    """Programs that begin and end."""
    await attacker.bash(f"nice -n 15 timeout {attacker.seconds} sh -c 'while :; do /bin/true & wait; done'; true")
    attacker.seen["done"] += 1


@attack("done")
async def changing_files(attacker: Attacker) -> None:
    """Files that come and go in the folder that people look at."""
    loop = "cd /mnt/user-data/outputs; while :; do touch a1 b1 c1; rm -f a1 b1 c1; done"
    await attacker.bash(f"nice -n 15 timeout {attacker.seconds} bash -c '{loop}'; true")
    attacker.seen["done"] += 1


@attack(REFUSED, "late", prepare=install)
async def proxy_pipeline(attacker: Attacker) -> None:
    """The last one: the chat waits for its own share of the worker for a while after it."""
    await flood(attacker, 10, "pipeline")
