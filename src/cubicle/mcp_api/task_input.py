"""What the tool of a running task asks the user of its client, and the answers that come with `tasks/update`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cubicle.tools.questions import ACTIONS, CannotAsk, Question, Reply

_MAX_QUESTIONS = 32


class BadReply(ValueError):
    """The client's answer to a question has not the form of one."""


class TaskInput:
    """The open questions of one call."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called when questions were asked or answered."""
        self.may_ask = False
        """The call is a task of a client that asks its user for servers."""
        self._changed = changed
        self._open: dict[str, tuple[Question, asyncio.Future[Reply]]] = {}

    @property
    def open(self) -> Mapping[str, Question]:
        """Those without an answer, by their keys. A key is that of one question for ever."""
        return {key: question for key, (question, _) in self._open.items()}

    async def ask(self, questions: Sequence[Question]) -> Sequence[Reply]:
        """Ask all of them, and wait for all answers. Raises CannotAsk."""
        if not self.may_ask or len(self._open) + len(questions) > _MAX_QUESTIONS:
            raise CannotAsk
        loop = asyncio.get_running_loop()
        asked = {secrets.token_hex(8): (question, loop.create_future()) for question in questions}
        self._open |= asked
        self._changed()
        try:
            return [await reply for _, reply in asked.values()]
        finally:
            for key in asked:
                self._open.pop(key, None)

    def answer(self, replies: Mapping[str, Any]) -> None:
        """Take the answers to open questions; others are left out. Raises BadReply, and has then taken none."""
        taken = {key: read_reply(value) for key, value in replies.items() if key in self._open}
        for key, reply in taken.items():
            _, waiting = self._open.pop(key)
            if not waiting.done():
                waiting.set_result(reply)
        if taken:
            self._changed()


def read_reply(value: object) -> Reply:
    """The result of an elicitation. Raises BadReply."""
    if not isinstance(value, Mapping) or value.get("action") not in ACTIONS:
        raise BadReply("An answer to a question is an object with `action`: accept, decline or cancel.")
    content = value.get("content")
    if content is not None and not isinstance(content, Mapping):
        raise BadReply("The `content` of an answer is an object.")
    return Reply(value["action"], content or {})


def input_requests(questions: Mapping[str, Question]) -> dict[str, Any]:
    """Questions as MCP has them in results and tasks."""
    return {
        key: {
            "method": "elicitation/create",
            "params": {"mode": "form", "message": question.message, "requestedSchema": dict(question.schema)},
        }
        for key, question in questions.items()
    }
