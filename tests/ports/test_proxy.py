"""The proxy to ports, through the true service, to programs in a true sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cubicle.core.chat import Chat
from tests.ports.conftest import CHAT, KEYS, Ground, ground_on
from tests.support.process import free_port

ground = ground_on("memory", "docker-runc")

PAGE = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Sec-Fetch-Site": "none", "Accept": "text/html"}


async def echo(client: httpx.AsyncClient, target: str = "/", **options: Any) -> dict[str, Any]:
    async with client:
        answer = await client.request(options.pop("method", "GET"), target, **options)
    assert answer.status_code == 200, answer.text
    seen: dict[str, Any] = answer.json()
    seen["by_name"] = {name.lower(): value for name, value in seen["headers"]}
    return seen


async def test_a_request_reaches_the_program_as_it_expects_it(ground: Ground, program: int) -> None:
    client = ground.client(CHAT, program, Cookie="mine=1; other=2")
    seen = await echo(client, "/a%2Fb//c?q=%20&q=1", method="POST", content=b"body", headers={"X-Own": "yes"})
    assert (seen["method"], seen["target"], seen["body"]) == ("POST", "/a%2Fb//c?q=%20&q=1", "body")
    headers = seen["by_name"]
    assert headers["host"] == f"localhost:{program}"
    assert headers["x-own"] == "yes"
    assert headers["cookie"] == "mine=1; other=2"
    assert headers["x-forwarded-host"] == ground.host(CHAT, program)
    assert headers["x-forwarded-proto"] == "http"
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert headers["x-forwarded-port"] == str(ground.port)
    names = [name.lower() for name, _ in seen["headers"]]
    assert len(names) == len(set(names))


async def test_what_is_ours_never_reaches_the_program(ground: Ground, program: int) -> None:
    others = "cubicle-login=1; __Host-cubicle-port-frame=2; cubicle-3=4"
    tokens = (ground.token(CHAT, program), ground.token(CHAT, program + 1), "of-nothing")
    for by, token in product(("key", "header", "cookie"), tokens):
        client = ground.client(CHAT, program, by=by, Cookie=others)
        headers = {"Authorization": f"Bearer {KEYS['acme']}", "Forwarded": "for=1.2.3.4", "X-Forwarded-For": "1.2.3.4"}
        headers["Referer"] = f"http://{ground.host(CHAT, program)}/page?cubicle-key={token}"
        seen = await echo(client, f"/?a=1&cubicle-key={token}", headers=headers)
        text = json.dumps(seen)
        assert token not in text
        assert "cubicle" not in text
        assert KEYS["acme"] not in text
        assert "authorization" not in seen["by_name"]
        assert seen["by_name"]["x-forwarded-for"] == "1.2.3.4"  # of a reverse proxy on this machine
        assert "forwarded" not in seen["by_name"]
        assert seen["target"] == "/?a=1"


@pytest.mark.parametrize(
    "sent", ["Bearer a.token.of-the-page", "Basic YTpiOmM=", "token a-word-of-its-own", f"bearer  {KEYS['rival']}"]
)
async def test_no_authorization_reaches_the_program(ground: Ground, program: int, sent: str) -> None:
    for by in ("header", "cookie"):
        seen = await echo(ground.client(CHAT, program, by=by), headers={"Authorization": sent})
        assert "authorization" not in seen["by_name"]
        assert sent.split()[1] not in json.dumps(seen)


async def test_its_own_origin_is_as_the_program_names_itself(ground: Ground, program: int) -> None:
    own = f"http://{ground.host(CHAT, program)}"
    sent = {"Origin": own, "Referer": f"{own}/page?x", "Sec-Fetch-Site": "same-origin"}
    seen = await echo(ground.client(CHAT, program), method="POST", headers=sent)
    assert seen["by_name"]["origin"] == f"http://localhost:{program}"
    assert seen["by_name"]["referer"] == f"http://localhost:{program}/page?x"
    foreign = {"Referer": f"{own}.evil.example/", "Sec-Fetch-Site": "none"}
    seen = await echo(ground.client(CHAT, program), headers=foreign)
    assert seen["by_name"]["referer"] == foreign["Referer"]


async def test_bodies_of_both_framings(ground: Ground, program: int) -> None:
    async def parts() -> Any:
        for part in (b"one", b"two" * 40_000, b"three"):
            yield part

    seen = await echo(ground.client(CHAT, program), method="PUT", content=parts())
    assert seen["body"] == "one" + "two" * 40_000 + "three"
    assert seen["by_name"]["transfer-encoding"] == "chunked"
    assert "content-length" not in seen["by_name"]
    async with ground.client(CHAT, program) as client:
        answer = await client.post("/count", content=bytes(20 << 20))
    assert answer.json() == {"size": 20 << 20}


async def test_ranges_and_head(ground: Ground, program: int) -> None:
    async with ground.client(CHAT, program) as client:
        part = await client.get("/size?n=1000000", headers={"Range": "bytes=256-511"})
        assert (part.status_code, part.content) == (206, bytes(range(256)))
        assert part.headers["Content-Range"] == "bytes 256-511/1000000"
        head = await client.head("/size?n=1000000")
        assert (head.status_code, head.headers["Content-Length"], head.content) == (200, "1000000", b"")
        assert (await client.get("/size?n=5")).content == bytes(range(5))


async def test_a_large_download_is_whole(ground: Ground, program: int) -> None:
    size, wanted = 64 << 20, hashlib.sha256(bytes(range(256)) * ((64 << 20) // 256)).hexdigest()
    summed = hashlib.sha256()
    async with ground.client(CHAT, program) as client, client.stream("GET", f"/size?n={size}") as answer:
        assert answer.headers["Content-Length"] == str(size)
        async for chunk in answer.aiter_bytes():
            summed.update(chunk)
    assert summed.hexdigest() == wanted


async def test_a_large_download_that_breaks_off_is_not_taken_for_whole(ground: Ground, program: int) -> None:
    sent = b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\nonly this"
    async with ground.client(CHAT, program) as client:
        with pytest.raises(httpx.TransportError):
            await client.get(f"/raw?hex={sent.hex()}")
        assert (await client.get("/")).status_code == 200


async def test_downloads_that_are_left_or_not_read_hold_up_nobody(ground: Ground, program: int) -> None:
    async with ground.client(CHAT, program) as client:
        for _ in range(8):
            async with client.stream("GET", f"/size?n={1 << 30}") as answer:
                await anext(answer.aiter_raw())
        async with contextlib.AsyncExitStack() as unread:
            for _ in range(8):
                await unread.enter_async_context(client.stream("GET", f"/size?n={1 << 30}"))
            async with asyncio.timeout(60):
                assert len((await client.get(f"/size?n={8 << 20}")).content) == 8 << 20
                assert (await client.get("/")).status_code == 200


async def test_downloads_that_are_left_at_any_moment_leave_no_descriptor(ground: Ground, program: int) -> None:
    lines = [f"Host: {ground.host(CHAT, program)}", f"Cookie: cubicle-port={ground.cookie(CHAT, program)}", "", ""]
    sent = "\r\n".join([f"GET /size?n={1 << 30} HTTP/1.1", *lines]).encode()
    before = pipes_of(ground.service.pid)
    for moment in range(40):
        reader, writer = await asyncio.open_connection("127.0.0.1", ground.port)
        writer.write(sent)
        if moment % 4:
            await reader.readexactly(moment)
        await asyncio.sleep(0.001 * (moment % 5))
        writer.transport.abort()
    async with asyncio.timeout(60):
        while pipes_of(ground.service.pid) > before:
            await asyncio.sleep(0.1)
    async with ground.client(CHAT, program) as client:
        assert (await client.get("/")).status_code == 200


def pipes_of(pid: int) -> int:
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(link).startswith("pipe:")
    return count


@pytest.mark.parametrize(("size", "n"), [(1, 20_000), (100_000, 20)])
async def test_chunked_answers(ground: Ground, program: int, size: int, n: int) -> None:
    async with ground.client(CHAT, program) as client:
        answer = await client.get(f"/chunks?size={size}&n={n}")
    assert set(answer.content) == {ord("x")}
    assert len(answer.content) == size * n


async def test_events_come_as_they_are_sent(ground: Ground, program: int) -> None:
    async with ground.client(CHAT, program) as client, client.stream("GET", "/events?n=5&every=0.3") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        late = [time.time() - float(line.split()[2]) async for line in answer.aiter_lines() if line.startswith("data")]
    assert len(late) == 5
    assert min(late) < 0.25  # held back until the next one, each would be later than that


@pytest.mark.parametrize("code", [200, 201, 204, 301, 304, 400, 404, 500, 599])
async def test_every_status(ground: Ground, program: int, code: int) -> None:
    async with ground.client(CHAT, program) as client:
        answer = await client.get(f"/status?code={code}")
        assert (answer.status_code, answer.content) == (code, b"")
        assert (await client.get("/")).status_code == 200


async def test_redirects_lead_to_names_of_the_same_chat(ground: Ground, program: int) -> None:
    own = f"http://{ground.host(CHAT, program)}"
    leads = {
        f"http://localhost:{program}/next?x": f"{own}/next?x",
        f"http://127.0.0.1:{program}": f"{own}/",
        f"//[::1]:{program}/": f"{own}/",
        "/relative": "/relative",
        "http://localhost:3000/": f"http://{ground.host(CHAT, 3000)}/",
        "https://elsewhere.example/": "https://elsewhere.example/",
    }
    async with ground.client(CHAT, program) as client:
        for sent, seen in leads.items():
            answer = await client.get(f"/status?code=302&to={quote(sent)}")
            assert answer.headers["Location"] == seen


async def test_cookies_of_the_program_are_for_one_name_only(ground: Ground, program: int) -> None:
    lines = ["Set-Cookie: a=1; Domain=.localhost; Path=/", "Set-Cookie: cubicle-port=x", "Set-Cookie: b=2; HttpOnly"]
    async with ground.client(CHAT, program) as client:
        answer = await client.get(f"/headers?lines={quote(json.dumps(lines))}")
    assert answer.headers.get_list("Set-Cookie") == ["a=1; Path=/", "b=2; HttpOnly"]


async def test_a_connection_carries_many_requests_and_the_program_too(ground: Ground, program: int) -> None:
    async with ground.client(CHAT, program) as client:
        peers = [(await client.get("/")).json()["peer"] for _ in range(5)]
        assert len(set(peers)) == (5 if ground.relayed else 1)
        for _ in range(3):  # a body that the program did not read is no request of anybody's
            poison = b"GET /poison HTTP/1.1\r\nHost: x\r\n\r\n"
            assert (await client.post("/unread", content=poison)).json() == {"answered": "early"}
            assert (await client.get("/clean")).json()["target"] == "/clean"


@pytest.mark.parametrize(
    "sent",
    [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"],
    ids=["nothing", "no HTTP", "two lengths"],
)
async def test_a_program_that_speaks_no_http_is_502(ground: Ground, program: int, sent: bytes) -> None:
    async with ground.client(CHAT, program) as client:
        answer = await client.get(f"/raw?hex={sent.hex()}")
    assert answer.status_code == 502
    assert answer.headers["X-Cubicle-Port"] == "refused"


async def test_an_answer_that_breaks_off_is_not_taken_for_whole(ground: Ground, program: int) -> None:
    for head in (b"Content-Length: 10", b"Transfer-Encoding: chunked"):
        sent = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n5\r\nab"
        async with ground.client(CHAT, program) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(f"/raw?hex={sent.hex()}")


async def test_a_visitor_who_leaves_ends_the_programs_work(ground: Ground, program: int) -> None:
    note = f"/tmp/flood-{program}"
    async with ground.client(CHAT, program) as client, client.stream("GET", f"/flood?note={note}") as answer:
        async for _ in answer.aiter_raw():
            break
    await stands_still(ground, note)


async def stands_still(ground: Ground, note: str) -> None:
    """Wait until the program writes nothing more into the file."""
    before = ""
    async with asyncio.timeout(30):
        while (now := await ground.bash(CHAT, f"cat {note}")) != before:
            before = now
            await asyncio.sleep(0.2)


async def test_a_visitor_who_leaves_with_a_body_and_more_requests_sent_is_noticed(ground: Ground, program: int) -> None:
    note = f"/tmp/left-{program}"
    lines = [f"Host: {ground.host(CHAT, program)}", f"Cookie: cubicle-port={ground.cookie(CHAT, program)}"]
    first = "\r\n".join([f"POST /flood?note={note} HTTP/1.1", *lines, "Content-Length: 1", "", "x"])
    second = "\r\n".join(["GET / HTTP/1.1", *lines, "", ""])
    reader, writer = await asyncio.open_connection("127.0.0.1", ground.port)
    writer.write((first + second).encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.transport.abort()
    await stands_still(ground, note)


async def test_a_visitor_who_does_not_read_stops_the_program(ground: Ground, program: int) -> None:
    note = f"/tmp/still-{program}"
    async with ground.client(CHAT, program) as client, client.stream("GET", f"/flood?note={note}") as answer:
        raw = answer.aiter_raw()
        await anext(raw)
        sizes: list[int] = []
        async with asyncio.timeout(30):
            while len(sizes) < 2 or sizes[-1] != sizes[-2] or not sizes[-1]:
                sizes.append(int((await ground.bash(CHAT, f"cat {note}")).split()[0]))
                await asyncio.sleep(0.3)
    assert sizes[-1] < 40 << 20


async def test_a_port_on_which_nothing_listens_says_so_and_comes(ground: Ground) -> None:
    port = free_port()
    async with ground.client(CHAT, port) as client:
        page = await client.get("/", headers=PAGE)
        assert (page.status_code, page.headers["X-Cubicle-Port"]) == (503, "waiting")
        assert f"Nothing listens on port {port} yet" in page.text
        asked = await client.head("/")
        assert (asked.status_code, asked.headers["X-Cubicle-Port"], asked.headers["Retry-After"]) == (
            503,
            "waiting",
            "1",
        )
        await ground.start(CHAT, port)
        assert "X-Cubicle-Port" not in (await client.head("/")).headers


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
async def test_programs_on_every_loopback_address(ground: Ground, address: str) -> None:
    port = await ground.start(CHAT, address=address)
    assert (await echo(ground.client(CHAT, port)))["target"] == "/"


@pytest.mark.parametrize("port", [7681, 9222])
async def test_ports_of_the_sandbox_itself_are_closed(ground: Ground, program: int, port: int) -> None:
    async with ground.client(CHAT, port) as client:
        assert (await client.get("/")).status_code == 403


def socket(ground: Ground, port: int, path: str = "/", *, cookie: bool = True, **options: Any) -> connect:
    headers = {"Cookie": f"cubicle-port={ground.cookie(CHAT, port)}; own=1; cubicle-login=2"} if cookie else {}
    headers["Authorization"] = "Bearer a.token.of-the-page"
    uri = f"ws://{ground.host(CHAT, port)}{path}"
    return connect(
        uri, host="127.0.0.1", port=ground.port, additional_headers=headers, proxy=None, max_size=None, **options
    )


async def test_websockets_both_ways(ground: Ground, sockets: int) -> None:
    async with socket(ground, sockets, "/a?b=1", subprotocols=["other", "chat"]) as client:
        assert client.subprotocol == "chat"
        for message in ("text", b"\x00\xff", "", "é" * 100_000, bytes(4 << 20)):
            await client.send(message)
            assert await client.recv() == message


async def test_the_handshake_has_the_headers_that_a_program_expects(ground: Ground, sockets: int) -> None:
    seen = []
    async with socket(ground, sockets, "/headers", origin=f"http://{ground.host(CHAT, sockets)}") as client:
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                seen.append(await client.recv())
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4000, "that was all")
    headers = dict(line.split(": ", 1) for line in map(str, seen))
    assert headers["Host"] == f"localhost:{sockets}"
    assert headers["origin"] == f"http://localhost:{sockets}"
    assert headers["Cookie"] == "own=1"
    assert "authorization" not in {name.lower() for name in headers}
    assert headers["X-Forwarded-Host"] == ground.host(CHAT, sockets)
    assert len({line.split(": ")[0].lower() for line in map(str, seen)}) == len(seen)


async def test_a_refused_handshake_has_the_programs_status(ground: Ground, sockets: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(ground, sockets, "/refused"):
            pass
    assert refused.value.response.status_code == 418
    with pytest.raises(InvalidStatus) as missing:
        async with socket(ground, free_port()):
            pass
    assert missing.value.response.status_code == 503
    with pytest.raises(InvalidStatus) as closed:
        async with socket(ground, sockets, cookie=False):
            pass
    assert closed.value.response.status_code == 401


async def test_no_key_is_written_to_the_log(ground: Ground, sockets: int) -> None:
    token = ground.token(CHAT, sockets)
    async with socket(ground, sockets, f"/?cubicle-key={token}", cookie=False) as client:
        await client.send("let in")
        assert await client.recv() == "let in"
    with pytest.raises(InvalidStatus):
        async with socket(ground, sockets, f"/refused?cubicle-key={token}", cookie=False):
            pass
    log = ground.service.log()
    assert token not in log
    assert "handshake" not in log


async def test_a_socket_that_is_not_read_stops_the_program(ground: Ground, sockets: int) -> None:
    async with socket(ground, sockets, "/flood", max_queue=1) as client:
        await client.recv()
        await asyncio.sleep(1)
        assert await echo_on(ground, sockets) == "still here"


async def echo_on(ground: Ground, sockets: int) -> str:
    client: ClientConnection
    async with socket(ground, sockets) as client:
        await client.send("still here")
        return str(await client.recv())


async def test_a_link_leaves_a_cookie_and_leads_to_the_clean_address(ground: Ground, program: int) -> None:
    own = f"http://{ground.host(CHAT, program)}"
    async with ground.client(CHAT, program, by="nothing") as client:
        assert (await client.get("/", headers=PAGE)).status_code == 401
        answer = await client.get(f"/a//b?x=1&cubicle-key={ground.token(CHAT, program)}&y=2", headers=PAGE)
        assert (answer.status_code, answer.headers["Location"]) == (303, f"{own}/a//b?x=1&y=2")
        name, _, rest = answer.headers["Set-Cookie"].partition("=")
        value, _, attributes = rest.partition("; ")
        assert name == "cubicle-port"
        assert attributes.split("; ")[1:] == ["Path=/", "HttpOnly", "SameSite=Lax"]
        assert (await client.get("/", headers={"Cookie": f"{name}={value}"})).status_code == 200
        frame = await client.get(
            "/",
            headers=PAGE | {"Sec-Fetch-Dest": "iframe"},
            extensions={"target": f"//evil.example/?cubicle-key={ground.token(CHAT, program)}".encode()},
        )
        assert frame.headers["Location"] == f"{own}//evil.example/"
        assert frame.headers["Set-Cookie"].endswith("Path=/; HttpOnly; Secure; SameSite=None; Partitioned")


async def test_a_stopped_chat_wakes_when_a_page_is_opened_and_says_so(ground: Ground) -> None:
    chat = Chat("sleeper", "acme")
    port = await ground.start(chat)
    headers = ground.key(chat)
    assert (await ground.service.client.post(f"/api/sandboxes/{chat.id}/stop", headers=headers)).status_code == 200
    async with ground.client(chat, port) as client:
        fetched = await client.get("/", headers={"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"})
        assert fetched.status_code == 503
        assert "stopped" in fetched.json()["detail"]
        assert fetched.headers["X-Cubicle-Port"] == "asleep"
        listed = (await ground.service.client.get("/api/sandboxes", headers=headers)).json()["sandboxes"]
        assert [row["state"] for row in listed if row["chat"] == chat.id] == ["stopped"]
        page = await client.get("/", headers=PAGE)
        assert (page.status_code, page.headers["X-Cubicle-Port"]) == (503, "waiting")
        assert "has to be started again" in page.text
        await ground.start(chat, port)
        assert (await client.get("/", headers=PAGE)).status_code == 200
