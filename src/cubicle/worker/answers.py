"""What the service answers its network worker. The worker handles hostile bytes: its messages are checked as such."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from cubicle.agents.agent_token import AgentToken
from cubicle.agents.budget import BudgetStore, OutOfBudget
from cubicle.agents.live_tokens import LiveTokens, TokenRefused
from cubicle.agents.pricing import TokenUsage
from cubicle.core.chat import Chat
from cubicle.egress.audit import LOGGER as EGRESS_LOGGER
from cubicle.egress.rules_file import Additions, RulesFile
from cubicle.log import chat_fields
from cubicle.machine.machine import Machine
from cubicle.machine.refusals import Refusal
from cubicle.tasks import start_task
from cubicle.worker.channel import ChannelLost, Fields, Handler

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LOGGER = re.compile(r"cubicle(\.[a-z_]{1,40}){0,6}")
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "context"}
_MAX_FIELDS = 64
_MAX_LENGTH = 4000
_MAX_TOKENS = 2**53


class Attachment:
    """One sandbox that the worker serves, for as long as the service is connected to it."""

    def __init__(self, chat: Chat, machine: Machine) -> None:
        self.chat = chat
        self.machine = machine
        self.attached = asyncio.Event()
        """Set at the first time."""
        self.lost = asyncio.Event()
        """The worker has lost its connection to the guest."""
        self.over = asyncio.Event()
        """The sandbox is gone."""


class Answers:
    """One object for all workers, one after the other."""

    def __init__(
        self, budgets: BudgetStore, tokens: LiveTokens, additions: Additions | None, rulebook: RulesFile
    ) -> None:
        self._budgets = budgets
        self._tokens = tokens
        self._uses: dict[int, asyncio.Event] = {}
        """Calls of agents that are under way, by the worker's number."""
        self._additions = additions
        self._rulebook = rulebook
        self.decided: Callable[[Chat, str, Mapping[str, Any]], None] = lambda chat, decision, fields: None
        """Called with each decision of the egress proxy that the worker tells of."""
        self._numbers = itertools.count(1)
        self._attachments: dict[int, Attachment] = {}
        self._reading: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def attached(self, attachment: Attachment) -> AsyncIterator[int]:
        """Within the block, messages of this number are about this sandbox."""
        number = next(self._numbers)
        attachment.lost.clear()
        self._attachments[number] = attachment
        try:
            yield number
        finally:
            del self._attachments[number]

    def handlers(self, up: asyncio.Event) -> dict[str, Handler]:
        """For the control channel of a new worker, which sets `up` when it can be used."""
        asked: dict[str, Callable[[Chat, Fields], Awaitable[Fields]]] = {
            "additions": self._answer_additions,
            "check_token": self._answer_check_token,
            "begin": self._answer_begin,
            "save": self._answer_save,
        }
        found: dict[str, Handler] = {op: partial(self._of_chat, answer) for op, answer in asked.items()}
        found |= {"up": lambda fields, sockets: up.set(), "resume": self._on_resume, "lost": self._on_lost}
        found |= {"offence": self._on_offence, "use_token": self._on_use_token}
        found |= {"refusal": self._on_refusal, "count": self._on_count, "log": self._on_log}
        found |= {"rules_read": self._on_rules_read, "release_token": self._on_release_token}
        return found

    def _of_chat(
        self, answer: Callable[[Chat, Fields], Awaitable[Fields]], fields: Fields, sockets: list[socket.socket]
    ) -> Awaitable[Fields]:
        return answer(_chat(fields), fields)

    async def _answer_additions(self, chat: Chat, fields: Fields) -> Fields:
        rules = await self._additions(chat) if self._additions is not None else ()
        named = (
            {"name": rule.name, "hosts": rule.hosts, "inject": rule.inject, "scheme": rule.scheme} for rule in rules
        )
        return {"rules": list(named)}

    async def _answer_check_token(self, chat: Chat, fields: Fields) -> Fields:
        try:
            return {"token": asdict(self._tokens.check(chat, fields["text"]))}
        except TokenRefused as error:
            return {"refused": str(error)}

    def _on_use_token(self, fields: Fields, sockets: list[socket.socket]) -> Awaitable[Fields]:
        """Known from here on: the very next message may be that the call is over."""
        use, released = int(fields["use"]), asyncio.Event()
        self._uses[use] = released
        return self._answer_use_token(_chat(fields), fields, use, released)

    async def _answer_use_token(self, chat: Chat, fields: Fields, use: int, released: asyncio.Event) -> Fields:
        """Answered when the token ends, or the worker's call that uses it."""
        try:
            given = token_of(fields)
            with self._tokens.using(chat, given):
                if self._tokens.holds(chat, given):
                    await released.wait()
        finally:
            self._uses.pop(use, None)
        return {}

    def _on_release_token(self, fields: Fields, sockets: list[socket.socket]) -> None:
        if (released := self._uses.get(int(fields["use"]))) is not None:
            released.set()

    async def _answer_begin(self, chat: Chat, fields: Fields) -> Fields:
        try:
            await self._budgets.begin(chat)
        except OutOfBudget as error:
            return {"refused": str(error)}
        return {}

    async def _answer_save(self, chat: Chat, fields: Fields) -> Fields:
        await self._budgets.save(chat)
        return {}

    def _on_count(self, fields: Fields, sockets: list[socket.socket]) -> None:
        used = {name: min(max(0, int(number)), _MAX_TOKENS) for name, number in fields["usage"].items()}
        self._budgets.count(_chat(fields), _text(fields["model"]), TokenUsage(**used))

    def _on_resume(self, fields: Fields, sockets: list[socket.socket]) -> Awaitable[Fields]:
        return self._resume(self._attachments.get(int(fields["id"])))

    async def _resume(self, attachment: Attachment | None) -> Fields:
        if attachment is None:
            raise ChannelLost("There is no such sandbox.")
        return {"resumed": await attachment.machine.resume()}

    def _on_lost(self, fields: Fields, sockets: list[socket.socket]) -> None:
        if (attachment := self._attachments.get(int(fields["id"]))) is not None:
            attachment.lost.set()

    def _on_offence(self, fields: Fields, sockets: list[socket.socket]) -> None:
        if (attachment := self._attachments.get(int(fields["id"]))) is not None:
            attachment.machine.condemn(_text(fields["reason"]))

    def _on_refusal(self, fields: Fields, sockets: list[socket.socket]) -> None:
        refusal = Refusal(_text(fields["target"]), _text(fields["note"]), _text(fields["shown"]))
        if (attachment := self._attachments.get(int(fields["id"]))) is not None:
            attachment.machine.refusals.add(refusal)

    def _on_rules_read(self, fields: Fields, sockets: list[socket.socket]) -> None:
        if self._reading is None or self._reading.done():
            self._reading = start_task(self._rulebook.refresh(), name="egress rules")

    def _on_log(self, fields: Fields, sockets: list[socket.socket]) -> None:
        """Write a line of the worker as if it were the service's."""
        name, level, given = _text(fields["logger"]), int(fields["level"]), dict(fields["fields"])
        logger = logging.getLogger(name if _LOGGER.fullmatch(name) else "cubicle.worker")
        extra = {
            key: value[:_MAX_LENGTH] if isinstance(value, str) else value
            for key, value in itertools.islice(given.items(), _MAX_FIELDS)
            if _NAME.fullmatch(key) and key not in _STANDARD_FIELDS and isinstance(value, str | int | float)
        }
        if "chat" in extra and "tenant" in extra:
            chat = Chat(str(extra["chat"]), str(extra["tenant"]))
            if name == EGRESS_LOGGER:
                self.decided(chat, _text(fields["text"]).removeprefix("egress "), extra)
            extra = chat_fields(chat) | extra
        logger.log(min(max(level, logging.DEBUG), logging.CRITICAL), "%s", _text(fields["text"]), extra=extra)


def token_of(fields: Fields) -> AgentToken:
    """A token as the control channel carries it."""
    given = fields["token"]
    return AgentToken(**{**given, "servers": tuple(given["servers"])})


def environment_of(answer: Fields) -> dict[str, str]:
    """The variables that a worker sets in a sandbox. Raises ChannelLost."""
    found: Any = answer.get("environment")
    if not isinstance(found, dict) or len(found) > _MAX_FIELDS:
        raise ChannelLost("The worker's answer is of another form.")
    if not all(_NAME.fullmatch(name) and isinstance(value, str) for name, value in found.items()):
        raise ChannelLost("The worker's answer is of another form.")
    return {name: value[:_MAX_LENGTH] for name, value in found.items()}


def _chat(fields: Fields) -> Chat:
    return Chat(_text(fields["chat"]), _text(fields["tenant"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value[:_MAX_LENGTH]
