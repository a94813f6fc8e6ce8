"""GET /system-prompt."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from cubicle.core.chat_isolation import Isolation
from cubicle.http_api.caller import from_query
from cubicle.prompt.system_prompt import SystemPrompt


class PromptRoutes:
    def __init__(self, prompt: SystemPrompt, mode: Isolation, public_base_url: str) -> None:
        self._prompt = prompt
        self._mode = mode
        self._public_base_url = public_base_url

    async def get(self, request: Request) -> Response:
        caller = from_query(request, self._mode)
        text = await self._prompt.text(caller.chat, caller.email, caller.name)
        headers = {"X-Public-Base-URL": self._public_base_url, "Cache-Control": "private, no-store"}
        return PlainTextResponse(text, headers=headers)
