"""What other members tell for the home page: merged, and believed only as far as it makes sense."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping

import pytest

from cubicle.chat.news import News
from cubicle.core.chat import Chat
from cubicle.http_api.home_elsewhere import HomeElsewhere, asked_for, merged
from cubicle.http_api.home_models import ChatCard, DemoState, OtherHome

DEMO = Chat("demo", "tenant & co")


def card(chat: str, output: str = "") -> ChatCard:
    return {
        "chat": chat, "state": "running", "used": 1.0, "tool": "bash_tool", "description": "", "running": False,
        "since": 1.0, "failed": False, "output": output, "picture": 0.0,
    }  # fmt: skip


def demo(state: str) -> DemoState:
    return {"chat": "demo", "state": state, "step": 0, "steps": 3, "says": ""}  # type: ignore[typeddict-item]


def home(*cards: ChatCard, state: str = "none") -> OtherHome:
    clients = [{"name": "x", "chat": one["chat"], "at": 1.0} for one in cards]
    return {"chats": list(cards), "clients": clients, "demo": demo(state)}  # type: ignore[typeddict-item]


def test_a_chat_is_shown_once_and_only_to_whom_it_may_be() -> None:
    found = merged(home(card("a", "own")), [home(card("a", "other"), card("b"), card("c"))], lambda chat: chat != "c")
    assert [(one["chat"], one["output"]) for one in found["chats"]] == [("a", "own"), ("b", "")]
    assert [one["chat"] for one in found["clients"]] == ["a", "a", "b"]


@pytest.mark.parametrize(("own", "other", "shown"), [("over", "playing", "playing"), ("none", "over", "over")])
def test_the_demo_that_plays_is_shown(own: str, other: str, shown: str) -> None:
    assert merged(home(state=own), [home(state=other)], lambda _: True)["demo"]["state"] == shown


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"[" * 100_000, json.dumps(home(card("a/b"))).encode(), b'{"chats":[{}]}']
)
async def test_what_makes_no_sense_is_left_out(body: bytes) -> None:
    async def ask(target: bytes) -> Mapping[str, bytes]:
        path, _, query = target.partition(b"?")
        assert (path, asked_for(query)) == (b"/members/home", DEMO)
        return {"1": body, "2": json.dumps(home(card("good"))).encode()}

    elsewhere = HomeElsewhere(ask, News())
    (found,) = await elsewhere.of(DEMO)
    assert [one["chat"] for one in found["chats"]] == ["good"]
    await elsewhere.close()


async def test_a_member_that_never_answers_holds_up_nobody_who_looks_again() -> None:
    async def ask(target: bytes) -> Mapping[str, bytes]:
        await asyncio.Event().wait()
        return {}

    elsewhere = HomeElsewhere(ask, News())
    assert await elsewhere.of(DEMO) == ()
    began = time.monotonic()
    assert await elsewhere.of(DEMO) == ()
    assert time.monotonic() - began < 1
    await elsewhere.close()
