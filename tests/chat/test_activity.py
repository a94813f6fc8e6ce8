"""What people see of a chat's tool calls."""

from __future__ import annotations

import asyncio

from cubicle.chat.activity import MOST_CHATS, MOST_EVENTS, Activity, Event
from cubicle.rules.chats import Chat

A, B = Chat("a"), Chat("b")


async def told(activity: Activity, chat: Chat, after: str = "") -> list[Event]:
    """What is kept; the first pause ends it."""
    events = []
    async for event in activity.follow(chat, after, patience=0.01):
        if event is None:
            break
        events.append(event)
    return events


async def test_a_call_is_told_from_its_start_to_its_end() -> None:
    activity = Activity()
    call = activity.begin(A, "bash_tool", {"command": "make", "description": "Build it"})
    call.output("one\n")
    call.end(error=False, result="one\n")
    events = [event.fields for event in await told(activity, A)]
    assert [event["type"] for event in events] == ["call", "output", "end"]
    assert {event["id"] for event in events} == {call.id}
    assert (events[0]["tool"], events[0]["description"], events[0]["arguments"]) == (
        "bash_tool",
        "Build it",
        {"command": "make"},
    )
    assert events[1]["text"] == "one\n"
    assert events[2]["error"] is False
    assert await told(activity, B) == []


async def test_a_reader_that_was_cut_off_goes_on_where_it_was() -> None:
    activity = Activity()
    for i in range(3):
        activity.begin(A, "view", {"path": f"/tmp/{i}"})
    first, *rest = await told(activity, A)
    assert await told(activity, A, after=first.id) == rest
    assert len(await told(activity, A, after="other-99")) == 3


async def test_news_reach_those_who_wait() -> None:
    activity = Activity()
    waiting = asyncio.create_task(anext(activity.follow(A)))
    await asyncio.sleep(0)
    activity.begin(A, "view", {"path": "/tmp"})
    async with asyncio.timeout(60):
        event = await waiting
    assert event is not None
    assert event.fields["tool"] == "view"


async def test_memory_is_bounded() -> None:
    activity = Activity()
    call = activity.begin(A, "bash_tool", {"command": "x" * 10**6})
    for _ in range(100):
        call.output("y" * 10**5)
    for _ in range(2 * MOST_EVENTS):
        activity.begin(A, "view", {})
    assert len(await told(activity, A)) == MOST_EVENTS
    for i in range(2 * MOST_CHATS):
        activity.begin(Chat(f"c{i}"), "view", {})
    assert len(activity._stories) == MOST_CHATS
