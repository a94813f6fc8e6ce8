"""GET /system-prompt."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from cubicle.core.chat_isolation import Isolation
from cubicle.core.keys import KeyRing
from cubicle.http_api.caller import from_query
from cubicle.prompt.system_prompt import Prompt


class PromptRoutes:
    def __init__(self, prompt: Prompt, ring: KeyRing, mode: Isolation, public_base_url: str) -> None:
        self._prompt = prompt
        self._ring = ring
        self._mode = mode
        self._public_base_url = public_base_url

    def routes(self) -> list[Route]:
        return [Route("/system-prompt", self.get, methods=["GET"])]

    async def get(self, request: Request) -> Response:
        caller = from_query(request, self._ring, self._mode)
        text = await self._prompt.text(caller.chat, caller.email, caller.name)
        headers = {"X-Public-Base-URL": self._public_base_url, "Cache-Control": "private, no-store"}
        return PlainTextResponse(text, headers=headers)
