"""Tool calls that do not pass through the SDK are answered byte by byte as the SDK answers them.

Both ways get the same exchanges, made of a seed, and the same tools. CUBICLE_LONG=1 makes 12,000 of them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from cubicle.chat.authentication import Authentication
from cubicle.chat.key_attempts import KeyAttempts
from cubicle.core.keys import KeyRing
from cubicle.fairness.fair_slots import Busy
from cubicle.files.uploads import Uploads
from cubicle.machine.errors import SandboxError
from cubicle.mcp_api import followed_call, progress, resumption
from cubicle.mcp_api.endpoint import McpEndpoint
from cubicle.mcp_api.transport import CONNECTION
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import Settings
from cubicle.tools.arguments import Arguments, BadArgument
from cubicle.tools.base import Answer, Call, ImageContent, TextContent, fail, say
from cubicle.tools.registry import Registry
from tests.support.service import ACCEPT, Options, instructions, raw_post, service_of

EXCHANGES = 12_000 if os.environ.get("CUBICLE_LONG") else 1200
SEED = 21
VERSIONS = (None, "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
TEXTS = (
    "",
    "plain",
    "zwei\nZeilen\r\n",
    'quotes " and \\ back',
    "\x00\x1b[0m\x7f",
    "äöü € 汉字 \U0001f600",
    "\u2028\u2029",
    "x" * 3000,
)
SCALARS = (None, True, False, 0, -1, 7, 2**53, 1.5, -0.0, 1e300, "", "0", "token", "ünicode \U0001f600")
IDS = (0, 1, -5, 2**53, 2**63 - 1, "", "a", "ä€\U0001f600", '"\\', "x" * 128, "y" * 200)
ODD_PARAMS = (
    {"task": {"ttl": 1000}}, {"task": None}, {"task": 5}, {"task": {"ttl": "x"}}, {"inputResponses": {}},
    {"inputResponses": 3}, {"requestState": "s"}, {"requestState": 1}, {"input_responses": {}}, {"meta": {"progressToken": 5}},
    {"extra": [1, {"a": None}]}, {"arguments": []}, {"arguments": "text"}, {"arguments": 5}, {"name": None}, {"name": 5},
    {"name": ""}, {"name": "no_such_tool"}, {"name": "ünicode" * 30}, {"name": ["bash_tool"]}, {"_meta": []}, {"_meta": "x"},
)  # fmt: skip
ODD_META = (
    {"progressToken": None}, {"progressToken": 1.5}, {"progressToken": 2.0}, {"progressToken": True}, {"progressToken": []},
    {"progressToken": {}}, {"progress_token": 1}, {"progress_token": None, "progressToken": 3}, {"progressToken": 2**70},
)  # fmt: skip
PLAIN_META = (
    {}, {"progressToken": 0}, {"progressToken": -3}, {"progressToken": ""}, {"progressToken": "tök€n"}, {"anything": [None, {}]},
    {"progressToken": 9, "io.modelcontextprotocol/clientInfo": {"name": "a client"}},
    {"io.modelcontextprotocol/clientInfo": 5}, {"claudecode/toolUseId": "toolu_0123456789abcdefABCD"}, {"traceparent": "00-x"},
    {"io.modelcontextprotocol/protocolVersion": 5, "io.modelcontextprotocol/clientCapabilities": []},
    {"idempotencyKey": ""}, {"idempotencyKey": 5}, {"conversation_id": "c"},
)  # fmt: skip


@dataclass
class Meeting:
    """Where a tool and the test wait for each other, in one exchange."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    streamed: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)


class FakeTool:
    """Answers as its arguments say, at any time the same."""

    description = "fake"
    outlives_caller = False
    schema: Mapping[str, Any] = {"type": "object"}

    def __init__(self, name: str, meeting: list[Meeting]) -> None:
        self.name = name
        self._meeting = meeting

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        values, meeting = arguments.values, self._meeting[0]
        text = str(values.get("text", values))
        match values.get("do"):
            case "blocks":
                picture = ImageContent(text.encode(), "image/png")
                return Answer((TextContent(text), picture, replace(picture, as_text=True), TextContent("")))
            case "nothing":
                return Answer(())
            case "fail":
                return fail(text)
            case "surrogate":
                return say(text + "\ud800")
            case "bad argument":
                raise BadArgument(text)
            case "sandbox":
                raise SandboxError(text)
            case "busy":
                raise Busy(text)
            case "crash":
                raise RuntimeError(text)
            case "report":
                call.report(text)
            case "stream":
                call.report(text or "something")
                await meeting.streamed.wait()
                call.report("the rest")
            case "late":
                await asyncio.sleep(0.01)
            case "wait":
                meeting.begun.set()
                await meeting.go_on.wait()
        return say(text)


@dataclass
class Answered:
    """What a client gets."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class Connection:
    """One that nobody closes."""

    transport = SimpleNamespace(is_closing=lambda: False)
    on_gone = None

    def look_for_end(self) -> None:
        pass


class Side:
    """An endpoint that answers one way."""

    def __init__(self, endpoint: McpEndpoint, meeting: list[Meeting]) -> None:
        self._endpoint = endpoint
        self._meeting = meeting
        self.direct = 0

    def counted(self) -> None:
        """Count the calls that go around the SDK from now on."""
        gate = self._endpoint._gate
        assert gate is not None
        assert gate.direct is not None
        take = gate.direct.take

        def counting(*arguments: Any) -> Any:
            call = take(*arguments)
            self.direct += call is not None
            return call

        gate.direct.take = counting  # type: ignore[method-assign, assignment]

    def without_direct_calls(self) -> None:
        assert self._endpoint._gate is not None
        self._endpoint._gate = replace(self._endpoint._gate, direct=None)

    async def post(self, headers: dict[str, str], body: bytes) -> Answered:
        answered = Answered()
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if not pending:
                await asyncio.Event().wait()
            return pending.pop()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answered.status, answered.headers = message["status"], dict(message["headers"])
            else:
                answered.body += message.get("body", b"")
                if b'"method":"notifications/' in answered.body:
                    self._meeting[0].streamed.set()

        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": raw}
        await self._endpoint(scope | {"client": ("127.0.0.1", 1), CONNECTION: Connection()}, receive, send)
        return answered

    async def answers(self, exchange: Exchange) -> list[Answered]:
        """What this side answers to all posts of an exchange; they come one after the other, and overlap."""
        meeting = self._meeting[0] = Meeting()
        posts = []
        for headers, body in exchange.posts:
            posts.append(asyncio.create_task(self.post(headers, body)))
            if len(exchange.posts) > 1:
                beginning = asyncio.create_task(meeting.begun.wait())
                await asyncio.wait([beginning, *posts], return_when=asyncio.FIRST_COMPLETED)
                beginning.cancel()
                for _ in range(30):
                    await asyncio.sleep(0)
        meeting.go_on.set()
        return [await post for post in posts]


@dataclass
class Exchange:
    """Posts that belong together."""

    posts: Sequence[tuple[dict[str, str], bytes]]


class Exchanges:
    """Makes them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sessions = [f"session-{number}" for number in range(40)]
        self._numbers = itertools.count(1000)

    def make(self) -> Exchange:
        choose = self._random.choice
        kind = self._random.random()
        if kind < 0.02:
            return self._overlapping(cancelled=True)
        if kind < 0.05:
            return self._overlapping(cancelled=False)
        message: Any = {"jsonrpc": "2.0", "id": self._id(), "method": "tools/call", "params": self._params()}
        if kind < 0.12:
            message |= choose(({"method": "tools/list"}, {"method": "ping"}, {"method": "no/such"}, {"method": "Tools/call"},
                               {"params": None}, {"params": {}}, {"jsonrpc": "1.0"}, {"id": None}, {"id": 1.5}))  # fmt: skip
        elif kind < 0.14:
            del message[choose(list(message))]
        return Exchange([(self._headers(), self._encoded(message))])

    def _overlapping(self, *, cancelled: bool) -> Exchange:
        """A call that is cancelled, or that is asked for once more, while it runs."""
        headers, id = self._headers(own=True), self._id()
        arguments: dict[str, Any] = {"do": "wait", "text": self._random.choice(TEXTS)}
        again = arguments | ({"more": 1} if self._random.random() < 0.4 else {})
        token = {"_meta": {"progressToken": 1}} if self._random.random() < 0.5 else {}

        def call(given: Any) -> bytes:
            params = {"name": "bash_tool", "arguments": given, **token}
            return self._encoded({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})

        if cancelled:
            meant = {"requestId": self._random.choice([id, id, str(id), "other"])}
            second = self._encoded({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": meant})
        else:
            if self._random.random() < 0.6:
                headers["Idempotency-Key"] = f"key-{next(self._numbers)}"
            second = call(again)
        return Exchange([(headers, call(arguments)), (headers, second)])

    def _id(self) -> int | str:
        return self._random.choice(IDS) if self._random.random() < 0.3 else next(self._numbers)

    def _params(self) -> dict[str, Any]:
        choose, draw = self._random.choice, self._random.random
        params: dict[str, Any] = {"name": choose(("bash_tool", "view")), "arguments": self._arguments()}
        if draw() < 0.5:
            params["_meta"] = choose(ODD_META if draw() < 0.2 else PLAIN_META)
        if draw() < 0.2:
            params |= choose(ODD_PARAMS)
        if draw() < 0.05:
            del params[choose(list(params))]
        if draw() < 0.1:
            params = dict(self._random.sample(list(params.items()), len(params)))
        return params

    def _arguments(self) -> Any:
        choose, draw = self._random.choice, self._random.random
        if draw() < 0.1:
            return choose((None, {}))
        kinds = (
            "blocks",
            "nothing",
            "fail",
            "surrogate",
            "bad argument",
            "sandbox",
            "busy",
            "crash",
            "report",
            "stream",
            "late",
        )
        arguments: dict[str, Any] = (
            {"do": choose(kinds), "text": choose(TEXTS)} if draw() < 0.6 else {"text": choose(TEXTS)}
        )
        if draw() < 0.3:
            arguments[choose(TEXTS)] = choose((*SCALARS, [None, [{}]], {"a": {"b": [1, 2.5, "ü"]}}))
        return arguments

    def _headers(self, *, own: bool = False) -> dict[str, str]:
        choose, draw = self._random.choice, self._random.random
        headers = {
            "Host": "127.0.0.1:1",
            "Accept": ACCEPT,
            "Content-Type": "application/json",
            "X-Chat-Id": choose(("one", "two")),
        }
        if (version := choose(VERSIONS)) is not None:
            headers["MCP-Protocol-Version"] = version
        if own or draw() < 0.3:
            headers["Mcp-Session-Id"] = f"own-{next(self._numbers)}"
        elif draw() < 0.6:
            headers["Mcp-Session-Id"] = choose(self._sessions)
        if draw() < 0.1:
            headers["Idempotency-Key"] = choose(('"a key"', "key", "", "k" * 256, "ü"))
        return headers

    def _encoded(self, message: Any) -> bytes:
        return json.dumps(message, ensure_ascii=self._random.random() < 0.5).encode()


@asynccontextmanager
async def side_of(fleet: Fleet) -> AsyncIterator[Side]:
    settings, meeting = Settings(_env_file=None), [Meeting()]  # type: ignore[call-arg]
    registry = Registry([FakeTool("bash_tool", meeting), FakeTool("view", meeting)])
    authentication = Authentication(KeyAttempts(KeyRing.parse("", ""), 1000), None, settings.known_hosts)
    endpoint = McpEndpoint(registry, Uploads(fleet), instructions, settings, authentication, secret=b"the same")
    async with endpoint.running():
        yield Side(endpoint, meeting)


async def test_a_direct_call_is_answered_byte_by_byte_as_by_the_sdk(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(progress, "GATHER", 0.001)
    monkeypatch.setattr(progress, "WINDOW", 0.001)
    monkeypatch.setattr(followed_call, "SOON_SECONDS", 0.002)
    monkeypatch.setattr(resumption, "secrets", SimpleNamespace(token_hex=lambda size: "ab" * size))
    exchanges, seen = Exchanges(SEED), dict[int, int]()
    async with side_of(fleet) as ours, side_of(fleet) as sdks:
        ours.counted()
        sdks.without_direct_calls()
        for number in range(EXCHANGES):
            exchange = exchanges.make()
            for mine, theirs in zip(await ours.answers(exchange), await sdks.answers(exchange), strict=True):
                told = f"exchange {number}: {str(exchange)[:1000]}"
                assert (mine.status, mine.body) == (theirs.status, theirs.body), told
                # What is one piece says how long it is: there the SDK's way has sent its first event before.
                size = mine.headers.pop(b"content-length", None)
                assert size in (theirs.headers.pop(b"content-length", size), None), told
                assert size is None or int(size) == len(mine.body), told
                assert mine.headers == theirs.headers, told
                if len(exchange.posts) == 1 and b'"result"' in mine.body:
                    assert json.loads(mine.body.splitlines()[-2][6:])["id"] == json.loads(exchange.posts[0][1])["id"], (
                        told
                    )
                seen[mine.status] = seen.get(mine.status, 0) + 1
    assert ours.direct > EXCHANGES / 2
    assert {200, 202, 400, 500} <= set(seen)


class Waiting:
    """A tool that goes on until it is ended."""

    name = "waiting"
    description = "waits"
    outlives_caller = False
    schema: Mapping[str, Any] = {"type": "object"}

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return say("done")


@pytest.mark.parametrize(
    ("headers", "goes_on"),
    [
        ((), False),
        (("Mcp-Session-Id: early", "MCP-Protocol-Version: 2025-06-18"), False),
        (("Mcp-Session-Id: late", "MCP-Protocol-Version: 2025-11-25"), True),
    ],
)
async def test_a_client_that_leaves_before_anything_was_sent_ends_its_call_unless_it_can_resume(
    fleet: Fleet, headers: Sequence[str], goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_call, "SOON_SECONDS", 60.0)
    tool = Waiting()
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "waiting", "arguments": {}}}
    async with service_of(fleet, Options(settings={"resume_seconds": 2.0}, tools=[tool])) as service:
        async with raw_post(service.url, body, *headers):
            await tool.begun.wait()
        left = asyncio.get_running_loop().time()
        await asyncio.wait_for(tool.ended.wait(), 30)
        assert (asyncio.get_running_loop().time() - left > 1.5) is goes_on
