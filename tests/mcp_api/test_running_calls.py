"""Calls in tasks of their own: who follows them, and when they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cubicle.core import event_ids
from cubicle.core.caller import Caller, Headers
from cubicle.core.chat import Chat
from cubicle.fairness.fair_queue import FairQueue
from cubicle.fairness.fair_slots import Busy
from cubicle.mcp_api import event_streams, running_calls
from cubicle.mcp_api.cancellation import InFlight, RequestKey
from cubicle.mcp_api.followed_call import FollowedCall
from cubicle.mcp_api.request_context import CallRequest
from cubicle.mcp_api.resumption import ResumableAnswers
from cubicle.mcp_api.running_calls import CallCancelled, RunningCall, RunningCalls
from cubicle.tools.base import Answer, say

CHAT = Chat("one")


class Work:
    """A tool that goes on when it is told to."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended = asyncio.Event()
        self.runs = 0

    async def __call__(self, running: RunningCall) -> Answer:
        self.runs += 1
        running.report("begun\n")
        self.started.set()
        try:
            await self.go_on.wait()
        finally:
            self.ended.set()
        return say("done")


@pytest.fixture
async def calls() -> AsyncIterator[RunningCalls]:
    async with RunningCalls(FairQueue()) as calls:
        yield calls


def ignore(_text: str) -> None:
    """Output that the test does not look at."""


async def test_two_follow_one_call_and_get_one_answer(calls: RunningCalls) -> None:
    work, first, second = Work(), list[str](), list[str]()
    call = calls.start(CHAT, "bash_tool", work)
    with call.followed(first.append):
        await work.started.wait()
        assert calls.find(CHAT, call.id) is call
        with call.followed(second.append):
            call.report("more\n")
            work.go_on.set()
            await call.wait()
    assert (first, second) == (["begun\n", "more\n"], ["begun\n", "more\n"])
    assert call.answer() == say("done")
    assert work.runs == 1


async def test_of_many_requests_for_one_call_the_newest_can_cancel_it(calls: RunningCalls) -> None:
    async def unheard(_notification: object) -> None:
        pass

    def request(number: int) -> CallRequest:
        return CallRequest(Caller(CHAT), number, "s1", Headers(()), {}, None, unheard)

    in_flight, call = InFlight(), calls.start(CHAT, "bash_tool", Work())
    with call.followed(ignore):
        for number in range(1000):
            FollowedCall(call, request(number), in_flight).leave()
        assert len(in_flight._known) == running_calls.MAX_REQUESTS
        assert len(call._ends) < 10
        assert in_flight.cancel(RequestKey("s1", CHAT, "999"))
        await asyncio.wait_for(call.wait(), 10)
    assert not in_flight._known
    FollowedCall(call, request(1000), in_flight).leave()
    assert not in_flight._known


async def test_a_call_whose_answer_finds_no_room_to_be_resumed_is_not_left_running(
    calls: RunningCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()

    async def left_behind(chat: Chat, id: str, _identity: str) -> RunningCall:
        return calls.start(chat, "bash_tool", work, id=id, grace=0.05)

    async def nowhere(*_message: object) -> Any:
        raise AssertionError("it is refused before anything is sent")

    monkeypatch.setattr(event_streams, "MAX_STREAMS_OF_A_CHAT", 0)
    event = f"{event_ids.prefix(b'key', CHAT, 's1', 'call', 1)}0"
    async with ResumableAnswers(b"key", 60, left_behind) as answers:
        with pytest.raises(Busy):
            await answers.resume(event, Caller(CHAT), "s1", {}, nowhere, nowhere)
        await work.started.wait()
        await asyncio.wait_for(work.ended.wait(), 10)


async def test_whoever_comes_back_stops_the_time_however_often_it_was_to_begin(calls: RunningCalls) -> None:
    work = Work()
    call = calls.start(CHAT, "bash_tool", work, grace=0.05)
    for _ in range(3):
        call.expect_followers()
    with call.followed(ignore):
        await asyncio.sleep(0.15)
        assert not call.is_done
        work.go_on.set()
        await call.wait()
    assert call.answer() == say("done")
    assert not calls._left


async def test_no_other_chat_finds_a_call(calls: RunningCalls) -> None:
    call = calls.start(CHAT, "bash_tool", Work())
    assert calls.find(Chat("two"), call.id) is None
    assert calls.find(Chat("one", "another tenant"), call.id) is None


async def test_a_call_that_nobody_follows_ends_at_once(calls: RunningCalls) -> None:
    work = Work()
    call = calls.start(CHAT, "bash_tool", work)
    with call.followed(ignore):
        await work.started.wait()
    await asyncio.wait_for(call.wait(), 10)
    assert work.ended.is_set()
    assert not call.cancelled
    with pytest.raises(CallCancelled):
        call.answer()


async def test_a_call_goes_on_while_one_of_two_follows_it(calls: RunningCalls) -> None:
    work = Work()
    call = calls.start(CHAT, "bash_tool", work)
    with call.followed(ignore):
        with call.followed(ignore):
            await work.started.wait()
        work.go_on.set()
        await call.wait()
    assert call.answer() == say("done")


async def test_in_its_grace_time_a_call_can_be_followed_again(calls: RunningCalls) -> None:
    work, seen = Work(), list[str]()
    call = calls.start(CHAT, "bash_tool", work, grace=3600)
    with call.followed(ignore):
        await work.started.wait()
    call.report("unheard\n")
    with call.followed(seen.append):
        work.go_on.set()
        await call.wait()
    assert seen == ["begun\nunheard\n"]
    assert call.answer() == say("done")


async def test_after_its_grace_time_a_call_ends(calls: RunningCalls) -> None:
    work = Work()
    call = calls.start(CHAT, "bash_tool", work, grace=0.05)
    with call.followed(ignore):
        await work.started.wait()
    assert not call.is_done
    await asyncio.wait_for(call.wait(), 10)
    assert work.ended.is_set()


async def test_a_cancelled_call_ends_whoever_follows_it(calls: RunningCalls) -> None:
    work = Work()
    call = calls.start(CHAT, "sub_agent", work, outlives=True, grace=3600)
    with call.followed(ignore):
        await work.started.wait()
        call.cancel()
        await asyncio.wait_for(call.wait(), 10)
    assert call.cancelled
    assert calls.find(CHAT, call.id) is None


async def test_a_call_that_outlives_its_caller_goes_on(calls: RunningCalls) -> None:
    work = Work()
    call = calls.start(CHAT, "sub_agent", work, outlives=True)
    with call.followed(ignore):
        await work.started.wait()
    await asyncio.sleep(0)
    assert not call.is_followed
    work.go_on.set()
    await call.wait()
    assert call.answer() == say("done")


async def test_the_end_of_the_block_ends_every_call() -> None:
    work = Work()
    async with RunningCalls(FairQueue()) as calls:
        call = calls.start(CHAT, "sub_agent", work, outlives=True)
        await work.started.wait()
    assert call.is_done
    assert work.ended.is_set()


async def test_calls_are_bounded_and_their_number_falls_again(
    calls: RunningCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_calls, "MAX_CALLS_OF_A_CHAT", 2)
    monkeypatch.setattr(running_calls, "MAX_CALLS_OF_A_TENANT", 3)
    running = [calls.start(CHAT, "bash_tool", Work()) for _ in range(2)]
    with pytest.raises(Busy):
        calls.start(CHAT, "bash_tool", Work())
    running.append(calls.start(Chat("two"), "bash_tool", Work()))
    with pytest.raises(Busy):
        calls.start(Chat("three"), "bash_tool", Work())
    running.append(calls.start(Chat("three", "another tenant"), "bash_tool", Work()))
    for call in running:
        call.cancel()
        await call.wait()
    await asyncio.sleep(0)
    calls.start(CHAT, "bash_tool", Work())


async def test_only_so_many_calls_may_wait_for_their_followers(
    calls: RunningCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_calls, "MAX_LEFT_OF_A_CHAT", 1)
    left, other = (calls.start(CHAT, "bash_tool", Work(), grace=3600) for _ in range(2))
    for call in (left, other):
        with call.followed(ignore):
            pass
    await asyncio.wait_for(other.wait(), 10)
    assert not left.is_done
    with left.followed(ignore):  # whoever comes back makes room
        assert calls.may_be_left(CHAT)


async def test_kept_output_is_bounded(calls: RunningCalls) -> None:
    work, seen = Work(), list[str]()
    call = calls.start(CHAT, "bash_tool", work, grace=3600)
    with call.followed(ignore):
        await work.started.wait()
        for _ in range(100):
            call.report("x" * 10_000)
    with call.followed(seen.append):
        pass
    assert len(seen[0]) < running_calls.MAX_KEPT_OUTPUT + 100


async def test_a_failure_reaches_all_who_follow(calls: RunningCalls) -> None:
    async def broken(_running: RunningCall) -> Answer:
        raise ValueError("broken")

    call = calls.start(CHAT, "bash_tool", broken)
    with call.followed(ignore):
        await call.wait()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            call.answer()
