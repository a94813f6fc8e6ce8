"""Questions of a tool to the user of the client: asked before the call begins, or while it runs as a task.

None of the five tools asks any. A tool that does declares `asks_first`, or calls `Call.ask`.

CannotAsk    the client cannot be asked
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Action = Literal["accept", "decline", "cancel"]
ACTIONS: tuple[Action, ...] = ("accept", "decline", "cancel")


class CannotAsk(Exception):
    """The client cannot be asked: the call is no task, or the client does not ask its user for servers."""


@dataclass(frozen=True, slots=True)
class Question:
    """A form for the user."""

    message: str
    schema: Mapping[str, Any]
    """Of the answer: a flat object, as MCP allows it for elicitation."""


@dataclass(frozen=True, slots=True)
class Reply:
    action: Action
    content: Mapping[str, Any] = field(default_factory=dict)
    """What the user entered, if he accepted. It is not checked against the schema."""


Ask = Callable[[Sequence[Question]], Awaitable[Sequence[Reply]]]
"""Asks all at once, and waits for all answers. Raises CannotAsk."""


async def cannot_ask(_questions: Sequence[Question]) -> Sequence[Reply]:
    raise CannotAsk


def asks_first(tool: object) -> Mapping[str, Question]:
    """What is asked before a call of the tool begins. The answers become arguments of these names, which nobody else
    can give."""
    questions: Mapping[str, Question] = getattr(tool, "asks_first", {})
    return questions
