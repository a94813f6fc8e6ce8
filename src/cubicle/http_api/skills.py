"""GET /skill-list and GET /skill-mounts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from cubicle.core.accept import JSON, asks_for
from cubicle.core.chat_isolation import Isolation
from cubicle.http_api.caller import from_query
from cubicle.http_api.models import SkillInfo, SkillList, SkillMount, SkillMounts
from cubicle.prompt.catalogue import SkillCatalogue, SkillSet


class SkillRoutes:
    def __init__(self, library: SkillCatalogue, mode: Isolation) -> None:
        self._library = library
        self._mode = mode

    async def listed(self, request: Request) -> Response:
        """Every skill that the user has; as text for the prompt of a sub-agent when the client asks for text."""
        skill_set = await self._shelf(request)
        if asks_for(request.headers.getlist("Accept"), "text/plain", instead_of=JSON):
            return PlainTextResponse("".join(f"- {s.name} ({s.location}): {s.description}\n" for s in skill_set.skills))
        skills = [
            SkillInfo(name=s.name, description=s.description, location=s.location, source=s.source.value)
            for s in skill_set.skills
        ]
        return JSONResponse(SkillList(skills=skills))

    async def mounts(self, request: Request) -> Response:
        """Where the user's own skills are inside the sandbox."""
        skill_set = await self._shelf(request)
        mounts = [SkillMount(name=s.name, target=s.target, mode="ro") for s in skill_set.group("user")]
        return JSONResponse(SkillMounts(mounts=mounts))

    async def _shelf(self, request: Request) -> SkillSet:
        caller = from_query(request, self._mode)
        return await self._library.of(caller.email, caller.chat.tenant)
