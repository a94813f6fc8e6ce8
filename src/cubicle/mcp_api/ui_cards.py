"""MCP Apps (extension io.modelcontextprotocol/ui): parts of the workspace as cards in chat clients (docs/mcp-apps.md).

A card is one HTML page, the same for every chat: hosts and gateways may keep it, and show it to others. It reads
through its host what it shows, `cubicle://card/<chat>`: that holds a key which lets one look at this chat, for minutes.
Neither the page nor the answer of a tool holds a key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cubicle.browser import chromium
from cubicle.chat.links import Links
from cubicle.core.caller import Caller
from cubicle.core.chat import BadChatId, Chat
from cubicle.core.identity import Identity
from cubicle.core.personal_chats import may_enter
from cubicle.core.resource_uris import NoSuchResource
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.mcp_api.request_context import SESSION, Context, is_modern, scope_of
from cubicle.mcp_api.sessions import has_cards
from cubicle.ports.links import PortLinks
from cubicle.ports.listening import shown
from cubicle.sandbox.fleet import Fleet

EXTENSION = "io.modelcontextprotocol/ui"
MEDIA_TYPE = "text/html;profile=mcp-app"
CHAT_META = "cubicle/chat"
"""Where the answer of a tool names its chat, for the card."""
_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_PREFIX = "ui://cubicle/"
_STATE = "cubicle://card/"
_LOOK_SECONDS = 3.0
_MARK = "<!--view-->"

_VIEWS: Mapping[str, tuple[str, str]] = {
    "computer": ("The chat's computer", "What it shows now: the browser, a port, or a bar that opens them."),
    "browser": ("Browser", "The live browser of the chat's computer."),
    "terminal": ("Terminal", "The terminal of the chat's computer."),
    "file": ("File", "A file of the chat's computer."),
    "port": ("Port", "A page that a program of the chat's computer serves."),
}
_OF_TOOLS: Mapping[str, str] = {
    "bash_tool": "computer",
    "sub_agent": "computer",
    "view": "file",
    "create_file": "file",
    "str_replace": "file",
}


def declares(extensions: object) -> bool:
    """Whether these extensions of a client are with cards of the one type that there is."""
    said = extensions.get(EXTENSION) if isinstance(extensions, Mapping) else None
    if not isinstance(said, Mapping):
        return False
    types = said.get("mimeTypes")
    return not isinstance(types, list) or MEDIA_TYPE in types


def extensions_of(capabilities: object) -> object:
    return capabilities.get("extensions") if isinstance(capabilities, Mapping) else None


def shows_cards(context: Context) -> bool:
    """Whether the client of this request shows cards. In the handshake era its session says so."""
    params = context.params or {}
    if is_modern(context):
        meta = params.get("_meta")
        return declares(extensions_of(meta.get(_CAPABILITIES) if isinstance(meta, Mapping) else None))
    if context.method == "initialize":
        return declares(extensions_of(params.get("capabilities")))
    return has_cards(scope_of(context).get(SESSION) or "")


class UiCards:
    """The pages of the cards, and what they show. Looking wakes nothing."""

    def __init__(self, links: Links, fleet: Fleet, ports: PortLinks, template: Path) -> None:
        self._links = links
        self._fleet = fleet
        self._ports = ports
        self._template = template
        self._text = ""

    def declare(self, capabilities: dict[str, Any]) -> None:
        capabilities.setdefault("extensions", {})[EXTENSION] = {}

    def of_tool(self, name: str) -> dict[str, Any] | None:
        """The `_meta` of a tool whose answers a card shows."""
        view = _OF_TOOLS.get(name)
        return None if view is None else {"ui": {"resourceUri": f"{_PREFIX}{view}", "visibility": ["model", "app"]}}

    def of_answer(self, chat: Chat) -> dict[str, Any]:
        return {CHAT_META: chat.id}

    def listed(self) -> list[dict[str, Any]]:
        """For resources/list of clients that show cards."""
        return [
            {
                "uri": f"{_PREFIX}{view}",
                "name": view,
                "title": title,
                "description": description,
                "mimeType": MEDIA_TYPE,
                "_meta": {"ui": self._page_meta()},
            }
            for view, (title, description) in _VIEWS.items()
        ]

    def has(self, uri: str) -> bool:
        return uri.startswith((_PREFIX, _STATE))

    def chat_of(self, uri: str, caller: Caller) -> Chat | None:
        """Whose state it is; None for the page of a card. Raises NoSuchResource."""
        return None if uri.startswith(_PREFIX) else _chat_of(uri, caller)

    async def read(self, uri: str, chat: Chat | None) -> dict[str, Any]:
        """The content of a resource. Raises NoSuchResource."""
        if chat is None:
            return await self._page(uri)
        state = json.dumps(await self._state(chat))
        return {"uri": uri, "mimeType": "application/json", "text": state}

    async def _page(self, uri: str) -> dict[str, Any]:
        view = uri.removeprefix(_PREFIX)
        if view not in _VIEWS:
            raise NoSuchResource
        if not self._text:
            self._text = await asyncio.to_thread(self._template.read_text, "utf-8")
        text = self._text.replace(_MARK, view, 1)
        return {"uri": uri, "mimeType": MEDIA_TYPE, "text": text, "_meta": {"ui": self._page_meta()}}

    def _page_meta(self) -> dict[str, Any]:
        """The card itself talks to nobody but its host: what it shows is in a frame of the service."""
        base = urlsplit(self._links.base_url)
        return {"csp": {"frameDomains": [f"{base.scheme}://{base.netloc}"]}, "prefersBorder": True}

    async def _state(self, chat: Chat) -> dict[str, Any]:
        key, expires = self._links.card_key(chat)
        ports: list[dict[str, Any]] = []
        browser = False
        with suppress(SandboxError, TimeoutError):  # not up: then nothing runs there
            async with asyncio.timeout(_LOOK_SECONDS), self._fleet.look(chat) as machine:
                ports = await self._open_ports(chat, machine, key)
                browser = await chromium.is_running(machine)
        return {
            "chat": chat.id,
            "base": f"{self._links.base_url}/",
            "key": key,
            "expires": expires,
            "sandbox": self._fleet.condition(chat),
            "browser": browser,
            "ports": ports,
        }

    async def _open_ports(self, chat: Chat, machine: Machine, key: str) -> list[dict[str, Any]]:
        found = shown(await machine.ports())
        return [
            {"port": one.port, "process": one.process, "url": self._ports.link(chat, one.port, key)} for one in found
        ]


def _chat_of(uri: str, caller: Caller) -> Chat:
    """The chat that the URI names: the caller's own. Who names no chat otherwise names it so, as with uploads."""
    try:
        named = Chat(unquote(uri.removeprefix(_STATE)), caller.chat.tenant)
    except BadChatId:
        raise NoSuchResource from None
    if named == caller.chat:
        return named
    if not caller.shared or not may_enter(caller.identity or Identity(named.tenant), named.id):
        raise NoSuchResource
    return named
