"""Attacks of those who hold nothing: no key, no link."""

from __future__ import annotations

import asyncio

from tests.attacks.attacker import Attacker
from tests.attacks.client import close_code, frame, post, request, upgrade
from tests.attacks.table import attack

HEAD = b"GET /admin HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HTML = "Accept: text/html"
WRONG = "Authorization: Bearer " + "x" * 40


@attack("waiting|closed")
async def slow_headers(attacker: Attacker) -> None:
    """Slowloris: 400 connections, a header line now and then."""
    await attacker.hold(400, HEAD, every=b"X-A: b\r\n")


@attack("waiting|closed")
async def slow_bytes(attacker: Attacker) -> None:
    """100 connections that send a head byte by byte."""
    await attacker.hold(100, b"GET /", every=b"a", pause=0.01)


@attack("waiting|closed")
async def idle_connections(attacker: Attacker) -> None:
    """1,500 connections that say nothing."""
    await attacker.hold(1500, b"", pause=0.2)


@attack("closed|200")
async def connection_churn(attacker: Attacker) -> None:
    """Connect and hang up."""

    async def one() -> None:
        (await attacker.connect()).close()
        attacker.seen["closed"] += 1

    await attacker.repeat(50, one)


@attack("431", "closed")
async def endless_headers(attacker: Attacker) -> None:
    """Header lines without end, on ten connections."""
    await attacker.repeat(10, lambda: attacker.once(HEAD + b"X-A: b\r\n" * attacker.size(200_000)))


@attack("431", "closed")
async def giant_header(attacker: Attacker) -> None:
    """One header value of 10 MB."""
    await attacker.repeat(10, lambda: attacker.once(HEAD + b"X-A: " + b"b" * attacker.size(10_000_000)))


@attack("431|400", "closed")
async def giant_header_name(attacker: Attacker) -> None:
    await attacker.repeat(10, lambda: attacker.once(HEAD + b"a" * attacker.size(10_000_000)))


@attack("431", "closed")
async def escaped_cookie(attacker: Attacker) -> None:
    """60,000 escaped characters in a quoted cookie, which some parsers take a minute for."""
    cookie = 'Cookie: a="' + "\\042" * 60_000 + '"'
    await attacker.flood(10, request("GET", "/admin", [HTML, cookie]))


@attack("431|401|429", "closed")
async def cookies_like_links(attacker: Attacker) -> None:
    """As many cookies as fit that look like the service's own, each to be checked."""
    one = "; ".join(f"cubicle-{n}=4000000000.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.default" for n in range(100))
    cookies = [f"Cookie: {one[:8000]}" for _ in range(7)]
    few = request("GET", "/files/a/", [f"Cookie: {one[:8000]}"])
    await attacker.flood(20, few, few, few, request("GET", "/files/a/", cookies))


@attack("431", "401|429|closed")
async def cookies_of_nothing(attacker: Attacker) -> None:
    await attacker.flood(20, request("GET", "/files/a/", ["Cookie: " + "a=b;" * 2000] * 7))


@attack("414", "closed")
async def giant_url(attacker: Attacker) -> None:
    await attacker.repeat(10, lambda: attacker.once(b"GET /" + b"a" * attacker.size(5_000_000)))


@attack("401|404|400|429", "414")
async def winding_url(attacker: Attacker) -> None:
    """8 KB of encoded slashes and dots."""
    await attacker.flood(20, request("GET", "/files/a/" + "%2f../" * 1300))


@attack("401|429", "414")
async def many_parameters(attacker: Attacker) -> None:
    await attacker.flood(20, request("GET", "/files/a/?" + "key=a&" * 1300))


@attack("200", "429|closed|no answer")
async def pipelined_health(attacker: Attacker) -> None:
    """10,000 requests on a connection before the first answer is read."""
    await attacker.repeat(10, lambda: attacker.once(request("GET", "/health") * 10_000))


@attack("401|closed|429", "429|no answer")
async def pipelined_refusals(attacker: Attacker) -> None:
    await attacker.repeat(10, lambda: attacker.once(request("GET", "/admin") * 10_000))


@attack("waiting|closed")
async def unread_answers(attacker: Attacker) -> None:
    """Pages are asked for on 200 connections, and never read."""
    await attacker.hold(200, request("GET", "/login", [HTML]) * 50)


@attack("401|413|400|429", "closed")
async def tiny_chunks(attacker: Attacker) -> None:
    """A body in chunks of one byte."""
    head = request("POST", "/mcp", ["Transfer-Encoding: chunked", "Content-Type: application/json"])
    head = head.replace(b"Content-Length: 0\r\n", b"")
    await attacker.repeat(10, lambda: attacker.once(head + b"1\r\na\r\n" * attacker.size(300_000)))


@attack("401|400|431|429", "closed")
async def chunk_extensions(attacker: Attacker) -> None:
    """A chunk whose extension is 5 MB."""
    head = request("POST", "/mcp", ["Transfer-Encoding: chunked"]).replace(b"Content-Length: 0\r\n", b"")
    await attacker.repeat(10, lambda: attacker.once(head + b"1;" + b"a" * attacker.size(5_000_000)))


@attack("400|401|429", "closed")
async def absurd_chunk_sizes(attacker: Attacker) -> None:
    head = request("POST", "/login", ["Transfer-Encoding: chunked"]).replace(b"Content-Length: 0\r\n", b"")
    sizes = (b"-1", b"ffffffffffffffffffff", b"0x10", b"zz", b" ", b"7fffffffffffffff")

    async def one() -> None:
        for size in sizes:
            await attacker.once(head + size + b"\r\nabc\r\n")

    await attacker.repeat(10, one)


@attack("431|401|413|400|429", "closed")
async def endless_trailers(attacker: Attacker) -> None:
    head = request("POST", "/login", ["Transfer-Encoding: chunked"]).replace(b"Content-Length: 0\r\n", b"")
    await attacker.repeat(10, lambda: attacker.once(head + b"0\r\n" + b"X-A: b\r\n" * attacker.size(200_000)))


@attack("400|401|429", "closed|413")
async def two_lengths(attacker: Attacker) -> None:
    """Content-Length and Transfer-Encoding together."""
    body = b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /"
    await attacker.repeat(20, lambda: attacker.once(body))


@attack("401|413|429", "closed")
async def promised_body(attacker: Attacker) -> None:
    """A length of 10^18, and no body."""
    head = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000000000000000\r\n\r\n"
    await attacker.repeat(50, lambda: attacker.once(head))


@attack("413", "closed|401")
async def large_login(attacker: Attacker) -> None:
    """A sign-in of 30 MB."""
    head = ["Content-Type: application/x-www-form-urlencoded"]
    await attacker.repeat(
        10, lambda: attacker.once(request("POST", "/login", head, b"key=" + b"a" * attacker.size(30_000_000)))
    )


@attack("401|429|403", "413|303")
async def sign_in_flood(attacker: Attacker) -> None:
    """Wrong keys, one after the other."""
    head = ["Content-Type: application/x-www-form-urlencoded"]
    await attacker.flood(30, request("POST", "/login", head, b"key=wrong-key-wrong-key"))


@attack("401|429|403|400|413")
async def form_of_ampersands(attacker: Attacker) -> None:
    head = ["Content-Type: application/x-www-form-urlencoded"]
    await attacker.flood(20, request("POST", "/login", head, b"a=&" * 20_000))


@attack("401|429")
async def wrong_keys(attacker: Attacker) -> None:
    """MCP calls with a wrong key of 8 KB."""
    long = "y" * 7_000
    await attacker.flood(40, post(b"{}", "x" * 40, "a"), post(b"{}", long, "a"))


@attack("401|429", "closed")
async def large_body_without_key(attacker: Attacker) -> None:
    """60 MB of brackets to the MCP path."""
    await attacker.repeat(5, lambda: attacker.once(post(b"[]," * attacker.size(10_000_000), "x" * 40, "a")))


@attack("4401|4429|403|401|429")
async def sockets_without_key(attacker: Attacker) -> None:
    """WebSockets that nobody may open."""

    async def one() -> None:
        connection = await attacker.connect()
        await connection.send(upgrade("/terminal/a/ws"))
        status = await connection.status()
        attacker.seen[await close_code(connection) if status == "101" else status] += 1
        connection.close()

    await attacker.repeat(30, one)


@attack("4401|4429|403|401|closed|429")
async def frames_without_key(attacker: Attacker) -> None:
    """Frames behind the upgrade, before anybody was let in."""

    async def one() -> None:
        connection = await attacker.connect()
        await connection.send(upgrade("/terminal/a/ws") + frame(1, b"a" * 65_000) * 40)
        status = await connection.status()
        attacker.seen[await close_code(connection) if status == "101" else status] += 1
        connection.close()

    await attacker.repeat(10, one)


@attack("401|200|404|429")
async def upgrade_offers(attacker: Attacker) -> None:
    """The offer of HTTP/2 with every request."""
    offer = ["Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"]
    await attacker.flood(30, request("GET", "/admin", offer))


@attack("400", "closed")
async def garbage(attacker: Attacker) -> None:
    """The start of TLS, and noise."""
    hello = bytes.fromhex("16030100f8010000f40303") + bytes(range(256)) * 40
    await attacker.repeat(40, lambda: attacker.once(hello))


@attack("400|431", "closed")
async def empty_lines(attacker: Attacker) -> None:
    """Line ends before a request that never comes."""
    await attacker.repeat(10, lambda: attacker.once(b"\r\n" * attacker.size(2_000_000)))


@attack("401|413|417|100|429", "closed")
async def expectations(attacker: Attacker) -> None:
    """Leave to send is asked for, and not used."""
    head = ["Expect: 100-continue", "Content-Type: application/json"]
    data = request("POST", "/mcp", [*head, "Content-Length: 1000000"]).replace(b"Content-Length: 0\r\n", b"")
    await attacker.repeat(40, lambda: attacker.once(data))


@attack("400|405|501|401|429", "closed")
async def strange_methods(attacker: Attacker) -> None:
    for method in ("PROPFIND", "TRACE", "AAAA", "CONNECT"):
        await attacker.repeat(5, lambda method=method: attacker.once(request(method, "/admin")))  # type: ignore[misc]


@attack("200|206|416|400|404")
async def many_ranges(attacker: Attacker) -> None:
    """A thousand ranges of a file that anybody may read."""
    ranges = "Range: bytes=" + ",".join(f"{n}-{n}" for n in range(1000))
    await attacker.flood(20, request("GET", "/static/icon.svg", [ranges]))


@attack("401|429")
async def many_preferences(attacker: Attacker) -> None:
    """An Accept header of 8 KB."""
    await attacker.flood(20, request("GET", "/admin", ["Accept: " + "text/html;q=0.1," * 500]))


@attack("401|404|429", "414")
async def long_capability(attacker: Attacker) -> None:
    await attacker.flood(20, request("GET", "/raw/" + "a" * 8_000 + "/b"))


@attack("403|401|421|400|429")
async def foreign_hosts(attacker: Attacker) -> None:
    """Names of hosts, and origins, that are none of ours."""
    data = request("POST", "/mcp", ["Origin: http://" + "a." * 3_000, WRONG])
    await attacker.flood(20, data.replace(b"127.0.0.1", b"a." * 3_000))


@attack("401|413|429", "closed")
async def form_without_key(attacker: Attacker) -> None:
    """A multipart upload of 30 MB."""
    head = ["Content-Type: multipart/form-data; boundary=b"]
    body = b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\n" + b"--b\r\n" * attacker.size(6_000_000)
    await attacker.repeat(5, lambda: attacker.once(request("POST", "/api/uploads/a/b", head, body)))


@attack("404|401|429", "414")
async def unknown_paths(attacker: Attacker) -> None:
    """Addresses that are not there, each another one: every request is a line of the log."""
    count = iter(range(10**9))

    async def one() -> None:
        await attacker.flood(1, *(request("GET", f"/static/{next(count)}" + "a" * 4_000) for _ in range(50)))

    await attacker.at_once(20, one)


@attack("401|closed|429", "no answer")
async def half_requests(attacker: Attacker) -> None:
    """A body that ends in the middle, on connections that are then reset."""

    async def one() -> None:
        connection = await attacker.connect()
        await connection.send(post(b"{}" * 1000, "x" * 40, "a")[:-500])
        await asyncio.sleep(0.001)
        connection.close()
        attacker.seen["closed"] += 1

    await attacker.repeat(50, one)
