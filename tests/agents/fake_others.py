"""Small fakes of the APIs that Codex (OpenAI's Responses) and Gemini CLI (Google's) call; scripted like `FakeApi`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.agents.fake_api import FakeApi, Refuse, Say, Use


class FakeResponses(FakeApi):
    """POST /responses, streamed."""

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/responses", self._responses, methods=["POST"])])

    async def _responses(self, request: Request) -> Response:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": f"Incorrect API key: {self.key[:6]}", "type": "x"}}, 401)
        turn = self._next()
        if isinstance(turn, Refuse):
            return JSONResponse({"error": {"message": turn.message, "type": turn.kind}}, turn.status)
        assert isinstance(turn, Say | Use)
        return StreamingResponse(self._stream(turn), media_type="text/event-stream")

    async def _stream(self, turn: Say | Use) -> AsyncIterator[bytes]:
        number = len(self.requests)
        item: dict[str, Any] = {"type": "message", "role": "assistant", "id": f"msg_{number}"}
        item["content"] = [{"type": "output_text", "text": turn.text, "annotations": []}]
        if isinstance(turn, Use) and "raw" in turn.input:
            item = {"type": "custom_tool_call", "id": f"ct_{number}", "call_id": f"call_{number}"}
            item |= {"name": turn.tool, "input": turn.input["raw"]}
        elif isinstance(turn, Use):
            item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
            item |= {"name": turn.tool, "arguments": json.dumps(turn.input)}
        usage = {"input_tokens": 100, "output_tokens": turn.tokens, "total_tokens": 100 + turn.tokens}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}  # type: ignore[dict-item]
        response = {"id": f"resp_{number}", "object": "response", "output": [], "usage": None}
        yield _event("response.created", response=response)
        yield _event("response.output_item.done", output_index=0, item=item)
        yield _event("response.completed", response={**response, "usage": usage})


class FakeGemini(FakeApi):
    """POST /v1beta/models/<model>:streamGenerateContent, streamed; and the same not streamed."""

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1beta/models/{call:path}", self._generate, methods=["POST"])])

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        if request.headers.get("x-goog-api-key") != self.key:
            return _google_error(403, "PERMISSION_DENIED", "API key not valid")
        call = request.path_params["call"]
        if "streamGenerateContent" not in call or not body.get("tools"):
            if "countTokens" in call:
                return JSONResponse({"totalTokens": 100})
            return self._side(streamed="stream" in call)
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        turn = self._next()
        if isinstance(turn, Refuse):
            return _google_error(turn.status, turn.kind, turn.message)
        assert isinstance(turn, Say | Use)
        part: dict[str, Any] = {"text": turn.text}
        if isinstance(turn, Use):
            part = {"functionCall": {"name": turn.tool, "args": turn.input}}
        return StreamingResponse(_chunks([_candidate(part, turn.tokens)]), media_type="text/event-stream")

    def _side(self, *, streamed: bool) -> Response:
        """Questions beside the work (which model, is it done): an object that says no more than it must."""
        answer = _candidate({"text": json.dumps({"reasoning": "x", "next_speaker": "user"})}, 1)
        if streamed:
            return StreamingResponse(_chunks([answer]), media_type="text/event-stream")
        return JSONResponse(answer)


def _candidate(part: dict[str, Any], tokens: int) -> dict[str, Any]:
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": tokens, "totalTokenCount": 100 + tokens}
    return {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}


async def _chunks(events: list[dict[str, Any]]) -> AsyncIterator[bytes]:
    for event in events:
        yield f"data: {json.dumps(event)}\r\n\r\n".encode()


def _google_error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": {"code": status, "message": message, "status": kind}}, status)


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
