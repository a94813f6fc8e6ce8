"""A small Messages API on loopback: it streams what a test scripted, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass(frozen=True)
class Say:
    """The model answers in words, and its turn is over."""

    text: str
    tokens: int = 10


@dataclass(frozen=True)
class Use:
    """The model calls a tool."""

    tool: str
    input: dict[str, Any]
    text: str = ""
    tokens: int = 10


@dataclass(frozen=True)
class Refuse:
    """The API answers an error."""

    status: int
    kind: str
    message: str = "scripted"


@dataclass(frozen=True)
class Wait:
    """The API takes its time, then goes on with the next turn."""

    seconds: float


@dataclass(frozen=True)
class Break:
    """The connection is gone in the middle of an answer."""


@dataclass(frozen=True)
class Hold:
    """The API begins its answer, and keeps the rest until the test lets go of it."""

    text: str = "held"
    tokens: int = 10


Turn = Say | Use | Refuse | Wait | Break | Hold


@dataclass
class FakeApi:
    """The scripted turns are used up one by one; the last stays."""

    key: str
    script: list[Turn] = field(default_factory=lambda: [Say("hello")])
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def reset(self) -> None:
        self.script, self.requests, self.headers = [Say("hello")], [], []
        self.asked, self.holding, self.released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/messages", self._messages, methods=["POST"]),
                Route("/v1/messages/count_tokens", self._count, methods=["POST"]),
                Route("/{rest:path}", self._other),
            ]
        )

    async def _other(self, request: Request) -> Response:
        return _error(404, "not_found_error", "no such path")

    async def _count(self, request: Request) -> Response:
        return JSONResponse({"input_tokens": 100})

    async def _messages(self, request: Request) -> Response:
        body = await request.json()
        if (
            request.headers.get("x-api-key") != self.key
            and request.headers.get("authorization") != f"Bearer {self.key}"
        ):
            return _error(401, "authentication_error", "invalid x-api-key")
        if not body.get("tools"):
            return self._answer(Say("A title", 1), body)  # side questions: titles, topics
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.asked.set()
        turn = self._next()
        while isinstance(turn, Wait):
            await asyncio.sleep(turn.seconds)
            turn = self._next()
        if isinstance(turn, Refuse):
            return _error(turn.status, turn.kind, turn.message)
        return self._answer(turn, body)

    def _next(self) -> Turn:
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def _answer(self, turn: Say | Use | Break | Hold, body: dict[str, Any]) -> Response:
        events = self._held(_events(turn, body)) if isinstance(turn, Hold) else _events(turn, body)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _held(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for event in events:
            yield event
            self.holding.set()
            await self.released.wait()


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"type": "error", "error": {"type": kind, "message": message}}, status)


async def _events(turn: Say | Use | Break | Hold, body: dict[str, Any]) -> AsyncIterator[bytes]:
    usage = {"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    yield _event("message_start", message=message)
    if isinstance(turn, Break):
        yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": "half an ans"})
        raise ConnectionAbortedError("scripted")
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if turn.text:
        blocks.append(({"type": "text", "text": ""}, {"type": "text_delta", "text": turn.text}))
    if isinstance(turn, Use):
        start = {"type": "tool_use", "id": f"toolu_{len(body['messages']):04}", "name": turn.tool, "input": {}}
        blocks.append((start, {"type": "input_json_delta", "partial_json": json.dumps(turn.input)}))
    for index, (start, delta) in enumerate(blocks):
        yield _event("content_block_start", index=index, content_block=start)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    reason = "tool_use" if isinstance(turn, Use) else "end_turn"
    yield _event(
        "message_delta",
        delta={"stop_reason": reason, "stop_sequence": None},
        usage={"output_tokens": turn.tokens},
    )
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
