"""A service with the routes of a chat's files, prompt and skills, over the memory driver, behind the true proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from cubicle.chat.authentication import Authentication
from cubicle.chat.key_attempts import KeyAttempts
from cubicle.chat.links import Links
from cubicle.core.chat import Chat
from cubicle.core.chat_isolation import Isolation
from cubicle.core.keys import KeyRing
from cubicle.files.uploads import Uploads
from cubicle.http_api.archive import ArchiveRoutes
from cubicle.http_api.auth import AccessCheck
from cubicle.http_api.errors import HANDLERS
from cubicle.http_api.files import FileRoutes
from cubicle.http_api.origin_check import OriginCheck
from cubicle.http_api.prompt import PromptRoutes
from cubicle.http_api.raw import RawRoutes
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.skills import SkillRoutes
from cubicle.http_api.uploads import UploadRoutes
from cubicle.prompt.catalogue import SkillCatalogue
from cubicle.prompt.system_prompt import SystemPrompt
from cubicle.sandbox.fleet import Fleet
from tests.support.service import refusing, serve


@dataclass
class Site:
    url: str
    fleet: Fleet
    links: Links
    uploads: Uploads
    client: httpx.AsyncClient

    async def bash(self, chat: Chat, command: str) -> str:
        async with self.fleet.lease(chat) as machine:
            end, output = await machine.output(command, timeout=60)
        assert end.code == 0, output
        return output.decode()

    async def raw(self, request: bytes) -> tuple[int, bytes]:
        """A request sent exactly so; (status, everything that came)."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return int(answer.split(b" ", 2)[1]), answer


@asynccontextmanager
async def site_of(fleet: Fleet, **options: Any) -> AsyncIterator[Site]:
    ring = KeyRing.parse(options.get("key", ""))
    mode = options.get("mode", Isolation.LENIENT)
    links = Links(b"s" * 32, "https://box.example/base", ring)
    library = SkillCatalogue(None, None, options.get("users"))
    uploads = Uploads(fleet)
    table = RouteTable()
    app = Starlette(
        routes=table.bind(
            prompt=PromptRoutes(SystemPrompt(library, links), mode, "https://box.example/base"),
            skills=SkillRoutes(library, mode),
            uploads=UploadRoutes(uploads, options.get("limit_mb", 8)),
            archive=ArchiveRoutes(fleet),
            files=FileRoutes(fleet, links),
            raw=RawRoutes(fleet, links),
        ),
        middleware=[
            Middleware(OriginCheck, [links.base_url]),
            Middleware(AccessCheck, Authentication(KeyAttempts(ring, 0), links), table, refusing, mode),
        ],
        exception_handlers=HANDLERS,  # type: ignore[arg-type]
    )
    async with serve(app) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client:
        yield Site(url, fleet, links, uploads, client)


@pytest.fixture(scope="module")
async def site(fleet: Fleet) -> AsyncIterator[Site]:
    async with site_of(fleet) as site:
        yield site
