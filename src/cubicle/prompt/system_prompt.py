"""The system prompt of a chat: one template, rendered for a chat and a user, kept for a minute."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import quote

import anyio
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from cubicle.chat.links import Links
from cubicle.core.chat import Chat
from cubicle.core.identity import LinkAccess
from cubicle.core.text import one_line, quoted
from cubicle.ports.links import PortLinks
from cubicle.prompt.catalogue import SkillCatalogue
from cubicle.prompt.skill_list import skill_list

FRESH_SECONDS = 60.0
MAX_KEPT = 2000

_templates = Environment(
    loader=PackageLoader("cubicle.prompt", "."),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    autoescape=False,  # noqa: S701 - the text is Markdown for a model; values from outside are quoted below
)


class SystemPrompt:
    """Renders the prompt."""

    def __init__(
        self,
        library: SkillCatalogue,
        links: Links,
        *,
        command_timeout: float = 120,
        network: str = "open",
        limits: str = "",
        sub_agent: bool = True,
        ports: PortLinks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library = library
        self._links = links
        self._command_timeout = command_timeout
        self._network = network
        self._limits = limits
        self._sub_agent = sub_agent
        self._ports = ports
        self._clock = clock
        self._kept: OrderedDict[tuple[Chat, str], tuple[float, object, str]] = OrderedDict()
        self._template: Template | None = None

    async def text(self, chat: Chat, email: str | None = None, name: str | None = None) -> str:
        """The prompt for this chat and user, the same within a minute; the name only adorns it."""
        key = (chat, (email or "").strip().lower())
        version = self._links.version  # with another one, its links may have been revoked
        made_at, made_for, text = self._kept.get(key, (float("-inf"), None, ""))
        if self._clock() - made_at < FRESH_SECONDS and made_for == version:
            return text
        text = await self.rendered(chat, email, name)
        self._kept[key] = (self._clock(), version, text)
        self._kept.move_to_end(key)
        self._drop_stale()
        return text

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        for key in [key for key in self._kept if key[0] == chat]:
            del self._kept[key]

    def _drop_stale(self) -> None:
        """A text is only good for a minute, and they lie in the order of their age."""
        now = self._clock()
        while self._kept:
            made_at, _, _ = next(iter(self._kept.values()))
            if len(self._kept) <= MAX_KEPT and now - made_at < FRESH_SECONDS:
                return
            self._kept.popitem(last=False)

    async def rendered(self, chat: Chat, email: str | None = None, name: str | None = None) -> str:
        """The same as it is right now, nothing of it kept."""
        skill_set = await self._library.of(email, chat.tenant)
        lines, more = skill_list(skill_set.skills)
        if self._template is None:
            self._template = await anyio.to_thread.run_sync(_templates.get_template, "system_prompt.md.j2")
        base, chat_id = self._links.base_url, quote(chat.id, safe="")
        return self._template.render(
            base_url=base,
            preview=f"{base}/preview/{chat_id}",
            query=self._links.query(chat, access=self._links.prompt_access),
            control=self._links.prompt_access is LinkAccess.CONTROL,
            skills=lines,
            more=more,
            chat_id=quoted(chat.id),
            email=quoted(email) if email and one_line(email) else "",
            name=quoted(name, 100) if name and one_line(name) else "",
            command_timeout=f"{self._command_timeout:g}",
            network=self._network,
            limits=self._limits,
            sub_agent=self._sub_agent,
            port_link=self._ports.template(chat) if self._ports is not None else "",
        )
