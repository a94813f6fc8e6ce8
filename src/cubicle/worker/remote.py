"""What the worker asks its service for, as objects of the same shape as those that the service has."""

from __future__ import annotations

import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import anyio

from cubicle.agents.agent_token import AgentToken
from cubicle.agents.budget import OutOfBudget
from cubicle.agents.live_tokens import NOT_A_TOKEN, TokenRefused
from cubicle.agents.pricing import TokenUsage
from cubicle.core.chat import Chat
from cubicle.egress.meter import Pace
from cubicle.egress.policy import Rule, Scheme
from cubicle.log import fields_of
from cubicle.tasks import start_task
from cubicle.worker.answers import token_of
from cubicle.worker.channel import ChannelLost, ControlChannel

_ANSWER_SECONDS = 20.0
_QUESTIONS_PER_SECOND = 200.0
"""Of one chat: the service's time is not the sandbox's."""
_MAX_CHATS = 10_000
_LINES_PER_SECOND = 50.0
_MAX_LINES = 500.0
REFUSALS_PER_SECOND = 20.0
MAX_REFUSALS = 100.0
_SUMMARY_SECONDS = 10.0
_MAX_LENGTH = 4000
_MAX_TOKEN = 4096


class Service:
    """The service as the worker sees it."""

    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._paces: OrderedDict[Chat, Pace] = OrderedDict()
        self._uses = itertools.count(1)

    async def additions(self, chat: Chat) -> tuple[Rule, ...]:
        """The chat's rules that set headers."""
        answer = await self._ask("additions", chat)
        return tuple(
            Rule(
                rule["name"],
                hosts=tuple(rule["hosts"]),
                scheme=Scheme(rule["scheme"]),
                inject=tuple((str(header), str(value)) for header, value in rule["inject"]),
            )
            for rule in answer["rules"]
        )

    async def checked(self, chat: Chat, text: str) -> AgentToken:
        """The agent's token that this text is. Raises TokenRefused."""
        if not text or len(text) > _MAX_TOKEN or not text.isascii():
            raise TokenRefused(NOT_A_TOKEN)
        answer = await self._ask("check_token", chat, text=text)
        if refused := answer.get("refused"):
            raise TokenRefused(str(refused))
        return token_of(answer)

    @contextmanager
    def using(self, chat: Chat, given: AgentToken) -> Iterator[anyio.CancelScope]:
        """What is done in the block ends when the service says that the token does."""
        use = next(self._uses)
        with anyio.CancelScope() as scope:
            watch = start_task(self._watch(use, chat, given, scope), name=f"token use {use}")
            try:
                yield scope
            finally:
                watch.cancel()
                self._channel.notify("release_token", use=use)

    async def _watch(self, use: int, chat: Chat, given: AgentToken, scope: anyio.CancelScope) -> None:
        with suppress(ChannelLost):
            await self._channel.ask("use_token", limit=None, **_named(chat), use=use, token=asdict(given))
        scope.cancel()

    async def begin(self, chat: Chat) -> None:
        """One more model call; OutOfBudget when the chat has used up what it may."""
        answer = await self._ask("begin", chat)
        if refused := answer.get("refused"):
            raise OutOfBudget(str(refused))

    def count(self, chat: Chat, model: str, usage: TokenUsage) -> None:
        self._channel.notify("count", **_named(chat), model=model[:200], usage=asdict(usage))

    async def save(self, chat: Chat) -> None:
        await self._channel.ask("save", limit=_ANSWER_SECONDS, **_named(chat))

    async def _ask(self, op: str, chat: Chat, **fields: Any) -> dict[str, Any]:
        pace = self._paces.get(chat)
        if pace is None:
            pace = self._paces[chat] = Pace(_QUESTIONS_PER_SECOND)
            if len(self._paces) > _MAX_CHATS:
                self._paces.popitem(last=False)
        await pace.take()
        return await self._channel.ask(op, limit=_ANSWER_SECONDS, **_named(chat), **fields)


def _named(chat: Chat) -> dict[str, Any]:
    return {"chat": chat.id, "tenant": chat.tenant}


class Volume:
    """How many messages of one kind may be sent for a chat: so many at once, and so many a second after that."""

    def __init__(self, at_once: float, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._per_second, self._clock = at_once, per_second, clock
        self._left = at_once
        self._at = self.summed_at = clock()
        self.omitted = 0

    def take(self) -> bool:
        """Whether one more may be sent."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            self.omitted += 1
            return False
        self._left -= 1
        return True


class ForwardedLog(logging.Handler):
    """Sends log records to the service, which writes them; of a flood it sends the beginning and a count."""

    def __init__(self, channel: ControlChannel, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._channel = channel
        self._clock = clock
        self._volumes: OrderedDict[tuple[object, object], Volume] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: _plain(value) for name, value in fields_of(record).items()}
        key = fields.get("tenant"), fields.get("chat")
        volume = self._volumes.get(key)
        if volume is None:
            volume = self._volumes[key] = Volume(_MAX_LINES, _LINES_PER_SECOND, self._clock)
            if len(self._volumes) > _MAX_CHATS:
                self._volumes.popitem(last=False)
        if self._channel.congested:
            volume.omitted += 1
            return
        if not volume.take():
            return
        now = self._clock()
        if volume.omitted and now - volume.summed_at > _SUMMARY_SECONDS:
            named = {name: value for name, value in fields.items() if name in ("tenant", "chat")}
            self._forward("cubicle.worker", logging.WARNING, f"{volume.omitted} lines were left out here", named)
            volume.omitted, volume.summed_at = 0, now
        if record.exc_info:
            fields["exception"] = logging.Formatter().formatException(record.exc_info)[-_MAX_LENGTH:]
        self._forward(record.name, record.levelno, record.getMessage(), fields)

    def _forward(self, logger: str, level: int, text: str, fields: dict[str, Any]) -> None:
        self._channel.notify("log", logger=logger, level=level, text=text[:_MAX_LENGTH], fields=fields)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | bool) else str(value)[:_MAX_LENGTH]
