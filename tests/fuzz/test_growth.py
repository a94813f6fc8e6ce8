"""Time against size, for every parser that bytes from outside reach: growth worse than linear fails.

Each is fed tokens that parsers stumble over, repeated: four times the bytes may take some four times the time.
`CUBICLE_LONG=1` goes on to larger texts and mixes tokens at random (`CUBICLE_SEED`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import io
import json
import os
import random
import re
import time
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from websockets.client import ClientProtocol
from websockets.protocol import Protocol, Side, State
from websockets.uri import WebSocketURI

from cubicle.agents import pricing
from cubicle.agents.gateway_sse import Endpoint
from cubicle.agents.run_dir import EventLines
from cubicle.backup.archive_names import place_of
from cubicle.backup.chats import read_through
from cubicle.browser import cdp_http, frame_file
from cubicle.browser import messages as viewing
from cubicle.browser.cdp import CdpConnection
from cubicle.chat.authentication import read_cookies
from cubicle.chat.links import Links
from cubicle.core import (
    accept,
    api_keys,
    arguments_hash,
    call_identity,
    caller,
    event_ids,
    hop,
    hosts,
    http_ranges,
    image_header,
    link_scope,
    media_types,
    origins,
    paths,
    personal_chats,
    port_names,
    request_limits,
    resource_uris,
    signing,
    untrusted_json,
)
from cubicle.core import text as shown
from cubicle.core.chat import Chat
from cubicle.core.identity import Identity
from cubicle.core.keys import KeyRing
from cubicle.egress import policy
from cubicle.egress.fake_dns import FakeDns
from cubicle.files import archive, browse, search_output
from cubicle.files.uploads import Upload
from cubicle.guest import wire
from cubicle.guest.operations import Entry
from cubicle.http_api import port_headers
from cubicle.http_api.files import _folder
from cubicle.http_api.multipart import _Form
from cubicle.http_api.urls import without_key
from cubicle.journal import format as journal_lines
from cubicle.journal import timeline
from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import SandboxError
from cubicle.machine.files import parse_entry
from cubicle.machine.websocket import WebSocketClient
from cubicle.mcp_api import jsonrpc, sessions
from cubicle.mcp_api.handlers import _resources
from cubicle.metrics import recent_file
from cubicle.ports import services
from cubicle.ports.program import ProgramConnection
from cubicle.prompt import skills
from cubicle.tools import bash_syntax, line_numbers, output

LONG = bool(os.environ.get("CUBICLE_LONG"))
SMALL, LARGE = (64 * 1024, 256 * 1024) if LONG else (16 * 1024, 64 * 1024)
FLOOR = 0.03
"""Seconds below which growth is not looked at: it drowns in what else the machine does."""
WORST = 8.0
"""Times longer for four times the bytes; sixteen is a square."""
TRIES = 3
"""What is slow is so each time; what another program slows down for a moment is not."""

TOKENS = [
    *(b"a", b"0", b" ", b"\t", b"\n", b"\r\n", b"\0", b"\xff", b"\xc3\xa9", b"-", b".", b"/", b"../", b"%", b"%2f"),
    *(
        b"\\",
        b"\\\\",
        b"\\042",
        b'\\"',
        b"'",
        b'"',
        b"`",
        b"(",
        b")",
        b"((",
        b"[",
        b"]",
        b"[]",
        b"{",
        b"}",
        b"{{",
        b"{}",
    ),
    *(b"<", b"<<a\n", b"<<<", b">", b"&", b"|", b";", b"#", b"$", b"$(", b"${", b"$'", b"!", b"!(", b"[[ ", b"a=1 "),
    *(b",", b":", b"=", b"a=", b"a=b;", b"q=0,", b"*/*,", b"text/html;q=0.1,", b"bytes=0-1,", b"&a", b"*a\n", b"- "),
    *(b'{"a":', b'"",', b"[],", b"1,", b"\\u0041", b"---\n", b"--b\r\n", b"a.", b"xn--", b"\xc0\x0c", b"\x01a", b"  "),
]


class Headers(dict[str, str]):
    """Header values as a framework gives them: every one the same."""

    def get(self, key: str, default: object = None) -> str:  # type: ignore[override]
        return self["value"]


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def raw_headers(data: bytes) -> caller.Headers:
    return caller.Headers([(name.lower().encode(), data) for name in ("Cookie", *caller.CHAT_HEADERS)])


def everybody(data: bytes) -> None:
    headers = caller.Headers(
        [(name.encode(), data) for name in (*caller.CHAT_HEADERS, *caller.EMAIL_HEADERS, *caller.NAME_HEADERS)]
    )
    caller.chat_id(headers), caller.email(headers), caller.display_name(headers), caller.mcp_servers(headers)


def form(data: bytes) -> None:
    parser = _Form("multipart/form-data; boundary=b")  # type: ignore[arg-type]
    for start in range(0, len(data), 4096):
        parser.feed(data[start : start + 4096])


def structure(data: bytes) -> None:
    counted = request_limits.JsonStructure(10**9)
    for start in range(0, len(data), 4096):
        counted.feed(data[start : start + 4096])


def event_lines(data: bytes) -> None:
    lines = EventLines()
    for start in range(0, len(data), 64):
        list(lines.feed(data[start : start + 64]))


def usage(data: bytes) -> None:
    meter = pricing.UsageMeter()
    for start in range(0, len(data), 64):
        meter.feed(data[start : start + 64])
    meter.finish()


def numbered(data: bytes) -> None:
    numbering_ = line_numbers.Numbering(line_numbers.LineRange.parse(1, -1))
    for start in range(0, len(data), 64):
        numbering_.feed(text(data[start : start + 64]))
    numbering_.finish()


def capped(data: bytes) -> None:
    cap, decoder = output.Cap(), output.Decoder()
    for start in range(0, len(data), 64):
        cap.feed(decoder.feed(data[start : start + 64]))
    cap.text()


def frames(data: bytes) -> None:
    """Whatever comes on a line, in pieces."""

    async def feed() -> None:
        line = GuestLink()
        for start in range(0, len(data), 1024):
            part = data[start : start + 1024]
            view = line.get_buffer(-1)
            if line.offence:
                return
            view[: len(part)] = part
            line.buffer_updated(len(part))

    asyncio.run(feed())


def small_frames(data: bytes) -> None:
    frames(b"".join(wire.frame(2, wire.OPEN, data[start : start + 8]) for start in range(0, len(data) // 3, 8)))


class Sent:
    """A stream out of a sandbox that brings these bytes, and swallows all that is said to it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self) -> bytes:
        data, self._data = self._data[:65536], self._data[65536:]
        return data

    async def pump(self, hear: Callable[[bytes], bool], rest: Callable[[], Awaitable[None]]) -> None:
        while data := await self.read():
            if not hear(data):
                await rest()

    def put(self, data: bytes) -> bool:
        return True

    async def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


def backend_frames(data: bytes, *, follow: bool = True) -> None:
    """What ttyd, or a browser, sends on its WebSocket."""
    protocol = ClientProtocol(WebSocketURI(False, "a", 1, "/", "", None, None), state=State.OPEN, max_size=10**9)
    client = WebSocketClient(Sent(data), protocol)  # type: ignore[arg-type]

    async def listen() -> None:
        if follow:
            await client.follow(lambda message, text, last: True, lambda: asyncio.sleep(0))
        while not follow:
            await client.receive()

    asyncio.run(listen())


def client_frames(data: bytes) -> None:
    """The same from a client, by the server's own protocol."""
    protocol = Protocol(Side.SERVER, max_size=10**9)
    for start in range(0, len(data), 4096):
        protocol.receive_data(data[start : start + 4096])
        protocol.events_received(), protocol.data_to_send()


def devtools_message(data: bytes) -> None:
    CdpConnection(None, lambda event: None)._take(data)  # type: ignore[arg-type]


def listing(data: bytes) -> None:
    """A folder that has an entry for every 128 bytes, each named by them."""
    names = [text(data[start : start + 128]) for start in range(0, len(data), 128)]
    entries = [
        browse.Listed("outputs", name, Entry(path=name, kind="file", size=1, mtime=1.0, mode=0o644, inode=1, blocks=1))
        for name in names
    ]
    _folder("", browse.Listing(entries, complete=True), LINKS.files(Chat("a")))


def resource_list(data: bytes) -> None:
    found = [Upload(text(data[start : start + 128]), 1, 1.0) for start in range(0, len(data), 128)]
    _resources(Chat("a"), found)


def endpoint(data: bytes) -> None:
    watching = Endpoint("http://a/sse", "b")
    for start in range(0, len(data), 4096):
        watching.pass_on(data[start : start + 4096] + b"\n\n")


LINKS = Links(b"a" * 32, "http://here", KeyRing.parse("0123456789abcdef"))
VERSION = http_ranges.Version(1000, 1.0, 1)
PORT_VIEW = port_headers.PortView(port_names.PortName(1, "0" * 32), f"1-{'0' * 32}.localhost", "http", "::1")


PERSON = Identity("acme", person="ann")
KEYS = '{"version": 1, "salt": "' + "0" * 32 + '", "keys": [%s]}'
ROW_OF_KEYS = '{"id": "k%03d", "tenant": "acme", "digest": "%064x"}'


def key_row(data: bytes) -> None:
    label = json.dumps(text(data))
    api_keys.parse(KEYS % f'{{"id": "k001", "tenant": "acme", "digest": "{"0" * 64}", "label": {label}}}')


def key_rows(data: bytes) -> None:
    """A file of so many bytes with as many keys as fit."""
    api_keys.parse(KEYS % ", ".join(ROW_OF_KEYS % (number, number) for number in range(len(data) // 128)))


def found_names(data: bytes) -> None:
    """What `find` printed."""
    for _ in search_output.Names().feed(data):
        pass


def found_lines(data: bytes) -> None:
    """What `rg` or `grep` printed."""
    for _ in search_output.Lines().feed(data):
        pass


def port_services(data: bytes) -> None:
    with contextlib.suppress(services.BadServices):
        services.parse(data)


def program_answer(data: bytes) -> None:
    """As the proxy reads it, 64 KB at a time."""

    async def read() -> None:
        connection = ProgramConnection(Sent(b"HTTP/1.1 200 OK\r\n" + data))  # type: ignore[arg-type]
        await connection.send_head("GET", b"/", [(b"Host", b"x")])
        with contextlib.suppress(SandboxError):
            await connection.head()
            async for _ in connection.body():
                pass

    asyncio.run(read())


PARSERS: dict[str, Callable[[bytes], object]] = {
    "cookies": lambda data: read_cookies(raw_headers(data)),
    "callers": everybody,
    "chat id": lambda data: Chat(text(data)),
    "link": lambda data: signing.opened(lambda _: b"x" * 32, "chat", text(data), 0),
    "capability": lambda data: signing.opened_capability(lambda _: b"x" * 32, text(data), "a/b", 0),
    "capability's path": lambda data: signing.opened_capability(
        lambda _: b"x" * 32, "9999999999.bWFpbg.Yw.h9999.AAAAAAAAAAAAAAAAAAAAAA", text(data), 0
    ),
    "port token": lambda data: signing.opened_port(lambda _: b"x" * 32, text(data), 0),
    "port name": lambda data: port_names.port_of([data + b".localhost"], b"http://" + data, ("localhost",)),
    "redirect of a program": lambda data: port_headers.location(data, PORT_VIEW),
    "cookie of a program": lambda data: port_headers.cookie(data, PORT_VIEW),
    "headers to a program": lambda data: port_headers.to_program(
        [(b"cookie", data), (b"connection", data), (b"referer", b"?" + data)], PORT_VIEW
    ),
    "services.json": port_services,
    "names that a search found": found_names,
    "lines that a search found": found_lines,
    "answer of a program": lambda data: program_answer(b"Transfer-Encoding: chunked\r\n\r\n" + data),
    "small chunks of a program": lambda data: program_answer(
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * (len(data) // 96)
    ),
    "head of a program": lambda data: program_answer(data),
    "call's key": lambda data: call_identity.find_identity(raw_headers(b""), {"callId": text(data)}, text(data), 1),
    "call's arguments": lambda data: arguments_hash.arguments_hash("a", {text(data): [text(data)] * 4}),
    "conversation in _meta": lambda data: personal_chats.conversation(
        {key: text(data) for key, _ in personal_chats.META_KEYS}
    ),
    "person's chat": lambda data: personal_chats.may_enter(PERSON, personal_chats.PREFIX + text(data)),
    "file of keys": lambda data: api_keys.parse(text(data)),
    "row of a key": key_row,
    "rows of keys": key_rows,
    "event id": lambda data: event_ids.parse(b"k" * 32, Chat("a"), "session", text(data)),
    "conversation of an event id": lambda data: event_ids.conversation(text(data)),
    "journal's line": journal_lines.check,
    "member's name": lambda data: place_of(text(data)),
    "archive": lambda data: read_through(io.BytesIO(data), 10**9),
    "archive's content": lambda data: read_through(io.BytesIO(gzip.compress(data, 1)), 10**9),
    "recent counts": recent_file.parse,
    "session id": lambda data: sessions.is_wellformed(text(data)),
    "accept": lambda data: accept.accepts_mcp([text(data)]),
    "accept preference": lambda data: accept.asks_for([text(data)], "text/plain", instead_of="application/json"),
    "host": lambda data: hosts.host_is_known(("a", "b"), text(data)),
    "origin": lambda data: origins.origin_is_ours(text(data), "here", ("http://a",)),
    "query": lambda data: without_key(text(data)),
    "hop": lambda data: hop.opened([b"k"], data, "GET", b"/", "1-a", 0.0),
    "range": lambda data: http_ranges.wanted(Headers(value=text(data)), VERSION),
    "path": lambda data: paths.relative(text(data)),
    "upload name": lambda data: paths.upload_name(text(data)),
    "resource": lambda data: resource_uris.UploadUri.parse("file://uploads/a/" + text(data)),
    "media type": lambda data: media_types.media_type(text(data)),
    "one line": lambda data: shown.one_line(text(data)),
    "multipart": form,
    "JSON structure": structure,
    "message": lambda data: jsonrpc.parse(untrusted_json.parse(data, max_size=10**9, max_values=10**9)),
    "shell": lambda data: bash_syntax.last_command(text(data)),
    "front matter": lambda data: skills.front_matter(b"---\n" + data + b"\n---\n"),
    "image header": image_header.read_header,
    "png": lambda data: image_header.read_header(b"\x89PNG\r\n\x1a\n" + data),
    "jpeg": lambda data: image_header.read_header(b"\xff\xd8\xff\xe0" + data),
    "DevTools answer": lambda data: cdp_http.rewritten(data, "http://here"),
    "DevTools pages": cdp_http.pages,
    "DevTools message": devtools_message,
    "address of a picture": lambda data: frame_file.shown_url("http://" + text(data)),
    "facts of a picture": frame_file.unpack_facts,
    "name of a picture": lambda data: frame_file.FrameName.of_id(text(data)),
    "scope of a link": lambda data: link_scope.LinkScope.of("file", text(data)),
    "time line": lambda data: timeline.step_of(
        journal_lines.Entry(1, 1.0, "call", {"arguments": {"command": text(data)}})
    ),
    "backend's WebSocket": backend_frames,
    "backend's WebSocket, read": lambda data: backend_frames(data, follow=False),
    "backend's fragments": lambda data: backend_frames(b"\x02\x00" + b"\x00\x01a" * (len(data) // 96)),
    "backend's pings": lambda data: backend_frames(b"\x89\x00" * (len(data) // 96)),
    "client's WebSocket": client_frames,
    "client's empty frames": lambda data: client_frames(b"\x82\x80aaaa" * (len(data) // 24)),
    "listing": listing,
    "resource list": resource_list,
    "name in an archive": lambda data: archive._safe(text(data)),
    "endpoint of an MCP server": endpoint,
    "live cursor": lambda data: viewing.cursor(text(data)),
    "live message": viewing.parse,
    "URL of the live view": lambda data: viewing.allowed(text(data)),
    "listing line": parse_entry,
    "egress target": lambda data: policy.Target.of("http://" + text(data)),
    "egress host": lambda data: policy.host_name(text(data)),
    "DNS": lambda data: FakeDns().answer(data),
    "DNS question": lambda data: FakeDns().answer(b"\0\1\1\0\0\1\0\0\0\0\0\0" + data),
    "agent events": event_lines,
    "usage": usage,
    "numbering": numbered,
    "cap": capped,
    "frames": frames,
    "small frames": small_frames,
}


def seconds(parse: Callable[[bytes], object], data: bytes) -> float:
    """Of the processor, the best of two."""
    best = float("inf")
    gc.disable()  # it goes over all that the tests before made
    try:
        for _ in range(2):
            began = time.thread_time()
            with contextlib.suppress(Exception):
                parse(data)
            best = min(best, time.thread_time() - began)
            if best < FLOOR:
                break
    finally:
        gc.enable()
    return best


def is_slow(parse: Callable[[bytes], object], data: bytes, limit: float) -> bool:
    return all(seconds(parse, data) > limit for _ in range(TRIES))


class Parser:
    """One of them, and how long it took so far for a token, so often repeated."""

    def __init__(self, name: str) -> None:
        self.name, self.parse = name, PARSERS[name]
        self._taken: dict[tuple[bytes, int], float] = {}

    def seconds(self, token: bytes, size: int, *, again: bool = False) -> float:
        if again or (token, size) not in self._taken:
            self._taken[token, size] = seconds(self.parse, repeated(token, size))
        return self._taken[token, size]


@pytest.fixture(scope="module", params=PARSERS)
def parser(request: pytest.FixtureRequest) -> Parser:
    return Parser(request.param)


def repeated(token: bytes, size: int) -> bytes:
    return (token * (size // len(token) + 1))[:size]


def mixes() -> list[bytes]:
    dice = random.Random(int(os.environ.get("CUBICLE_SEED", "1")))
    return [b"".join(dice.choices(TOKENS, k=dice.randrange(2, 6))) for _ in range(300 if LONG else 10)]


def test_time_grows_no_faster_than_the_bytes(parser: Parser) -> None:
    slow = {}
    for token in [*TOKENS, *mixes()]:
        for attempt in range(TRIES):
            if (large := parser.seconds(token, LARGE, again=attempt > 0)) <= FLOOR:
                break
            if (growth := large / max(1e-6, parser.seconds(token, SMALL, again=attempt > 0))) <= WORST:
                break
        else:
            slow[token] = f"{large * 1000:.0f} ms for {LARGE} bytes, {growth:.1f} times that of a quarter"
    assert not slow, f"{parser.name}: {slow}"


MAX_SIZE = 64 * 1024
"""That a header, a message or a frame may have at most."""
MAX_LENGTH = 0.25


def test_nothing_takes_the_loop_for_long(parser: Parser) -> None:
    slow = [
        token
        for token in TOKENS
        if all(parser.seconds(token, MAX_SIZE, again=attempt > 0) > MAX_LENGTH for attempt in range(TRIES))
    ]
    assert not slow, f"{parser.name} takes more than {MAX_LENGTH} s for {slow}"


ROOT = Path(__file__).parents[2]
PARSES_NOTHING = {
    *(
        "__init__",
        "core",
        "bad_settings",
        "blocked_networks",
        "chat_isolation",
        "close_codes",
        "sandbox_ports",
        "content_headers",
        "exit_codes",
        "frame_width",
        "identity",
    ),
    *("keymap", "network", "problem", "page_data", "page_policy", "page_scripts", "server_messages", "activity_events"),
    *("arguments", "pricing", "tcp_messages"),
}


def test_every_pure_module_that_parses_is_here() -> None:
    """A new parser of outside bytes comes with a row: pure modules that parse nothing are named."""
    source = Path(__file__).read_text()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (listed,) = (each["source_modules"] for each in contracts if each["name"].startswith("pure modules"))
    core = {path.stem for path in (ROOT / "src/cubicle/core").glob("*.py")}
    for name in (core | {module.rpartition(".")[2] for module in listed}) - PARSES_NOTHING:
        assert re.search(rf"\b{name}\b", source.partition("PARSES_NOTHING =")[0]), name


def test_a_name_of_a_thousand_pointers_is_not_followed() -> None:
    """Compression pointers that lead to each other make a parser of DNS go over the same bytes again and again."""
    records = b"".join(b"\xc0\x0c\0\1\0\1\0\0\0\0\0\0" for _ in range(5000))
    query = b"\0\1\1\0\0\1\x13\x88\0\0\0\0" + b"\1a" * 60 + b"\0\0\1\0\1" + records
    assert not is_slow(lambda data: FakeDns().answer(data), query, 0.01)
