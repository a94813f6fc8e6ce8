"""A person used the browser and gave it back: the next answer says so, whatever it was an answer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cubicle.browser.hand_back import HandBack
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.tools.arguments import Arguments, BadArgument
from cubicle.tools.base import Answer, Call, TextContent, say
from cubicle.tools.registry import Registry

pytestmark = pytest.mark.anyio


class Echo:
    name = "echo"
    description = ""
    schema: Mapping[str, Any] = {}
    outlives_caller = False

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        if arguments.optional_text("wrong"):
            raise BadArgument("wrong")
        return say("done")


def texts(answer: Answer) -> list[str]:
    return [block.text for block in answer.blocks if isinstance(block, TextContent)]


async def test_it_is_said_once_in_the_next_answer_that_somebody_hears() -> None:
    chat = Chat("one")
    registry = Registry((Echo(),))
    call = Call(Caller(chat))
    registry.hand_backs.add(chat, HandBack(0.0, 130.0, "Ann", "https://example.org/"))
    assert texts(await registry.run(Echo(), replace(call, heard=lambda: False), {})) == ["done"]
    assert texts(await registry.run(Echo(), Call(Caller(Chat("other"))), {})) == ["done"]
    first, note = texts(await registry.run(Echo(), call, {}))
    assert first == "done"
    assert note.startswith("Note: the user used the browser from 00:00 to 00:02 (UTC); now at https://example.org/.")
    assert texts(await registry.run(Echo(), call, {})) == ["done"]


async def test_a_failed_call_says_it_too() -> None:
    chat = Chat("two")
    registry = Registry((Echo(),))
    registry.hand_backs.add(chat, HandBack(0.0, 1.0, "", ""))
    answer = await registry.run(Echo(), Call(Caller(chat)), {"wrong": "yes"})
    assert answer.error
    assert texts(answer)[1].startswith("Note: the user used the browser")
