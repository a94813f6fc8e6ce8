"""What people see of a chat's tool calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cubicle.chat import activity as module
from cubicle.chat.activity import MAX_CALLS, MAX_CHATS, MAX_TEXT, Activity, ActivityEvent, CallEnd, Happening
from cubicle.chat.agent_steps import AgentStep, AgentUsage
from cubicle.chat.call_events import MAX_OUTPUT, MAX_STEPS
from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal

A, B = Chat("a"), Chat("b")


async def told(activity: Activity, chat: Chat, after: str = "") -> list[ActivityEvent]:
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
    call.end(CallEnd("done", notes=["a note"], exit_code=0))
    events = [event.fields for event in await told(activity, A)]
    assert [event["type"] for event in events] == ["call", "output", "end"]
    assert {event["id"] for event in events} == {call.id}
    assert (events[0]["tool"], events[0]["description"], events[0]["arguments"]) == (  # type: ignore[typeddict-item]
        "bash_tool",
        "Build it",
        {"command": "make"},
    )
    assert events[1]["text"] == "one\n"  # type: ignore[typeddict-item]
    assert events[2].items() >= {"error": False, "ending": "done", "exit_code": 0, "notes": ["a note"]}.items()
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
    waiting = asyncio.create_task(anext(activity.follow(A)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    activity.begin(A, "view", {"path": "/tmp"})
    async with asyncio.timeout(60):
        event = await waiting
    assert event is not None
    assert event.fields["tool"] == "view"


async def test_output_is_told_though_nothing_more_is_printed() -> None:
    activity = Activity()
    call = activity.begin(A, "bash_tool", {"command": "make"})
    following = activity.follow(A)
    await anext(following)
    call.output("one\n")
    call.output("two\n")  # within the time in which output is gathered
    async with asyncio.timeout(60):
        event = await anext(following)
    assert event is not None
    assert (event.fields["from"], event.fields["text"]) == (0, "one\ntwo\n")  # type: ignore[typeddict-item]
    await following.aclose()  # type: ignore[attr-defined]


def printed(events: list[ActivityEvent], known: str = "") -> str:
    """The output as a reader puts it together who had a part of it."""
    whole = known
    for event in events:
        if event.fields["type"] == "output":
            place = event.fields["from"]
            whole += "?" * (place - len(whole)) + event.fields["text"][max(0, len(whole) - place) :]
    return whole


async def test_of_many_lines_the_end_is_kept_and_the_call_with_it() -> None:
    activity = Activity()
    earlier = activity.begin(A, "view", {"path": "/tmp"})
    earlier.end(CallEnd("done", "a file"))
    call = activity.begin(A, "bash_tool", {"command": "make"})
    lines = [f"line {number}\n" for number in range(10_000)]
    heard: list[tuple[str, str]] = []
    for number, line in enumerate(lines):
        call.output(line)
        call._flush()
        if number in (3, 5_000, 9_990, 9_999):
            events = await told(activity, A)
            heard.append((events[-1].id, printed(events)))
    whole = "".join(lines)
    events = await told(activity, A)
    assert [event.fields["type"] for event in events[:3]] == ["call", "end", "call"]
    assert printed(events).endswith(whole[-MAX_OUTPUT:])
    for after, known in heard:  # whoever comes back misses nothing of what is kept, and reads nothing twice
        assert printed(await told(activity, A, after), known)[-MAX_OUTPUT:] == whole[-MAX_OUTPUT:]


async def test_what_is_left_out_of_a_flood_is_counted() -> None:
    activity = Activity()
    call = activity.begin(A, "bash_tool", {"command": "yes"})
    call.output("x" * 50_000)
    call.output("end")
    call.end(CallEnd("done"))
    output = next(event.fields for event in await told(activity, A) if event.fields["type"] == "output")
    assert output["text"].endswith("xend")
    assert output["from"] + len(output["text"]) == 50_003


async def test_a_command_is_told_whole_and_a_huge_one_says_how_much_is_left_out() -> None:
    activity = Activity()
    command = "python3 - <<'E'\n" + "print(1)\n" * 2_000 + "E"
    activity.begin(A, "bash_tool", {"command": command})
    activity.begin(A, "create_file", {"content": "y" * 80_000, "path": ["not", "text"]})
    first, second = [event.fields["arguments"] for event in await told(activity, A)]  # type: ignore[typeddict-item]
    assert first["command"] == command
    assert second["content"].endswith("y… (30,000 more characters)")
    assert second["path"] == '["not", "text"]'


async def test_an_argument_that_is_large_and_no_text_is_not_written_as_json() -> None:
    """To write 50 MB takes half a second."""
    activity = Activity()
    activity.begin(A, "bash_tool", {"command": "true", "more": ["é" * 200_000, {"a": 1}], "less": {"a": [1]}})
    shown = (await told(activity, A))[0].fields["arguments"]  # type: ignore[typeddict-item]
    assert shown == {"command": "true", "more": "(a large value)", "less": '{"a": [1]}'}


async def test_the_steps_of_an_agent_are_told_and_the_latest_are_kept() -> None:
    activity = Activity()
    call = activity.begin(A, "sub_agent", {"prompt": "Fix it."})
    call.watch_agent(AgentUsage(turns=1))
    for number in range(MAX_STEPS + 5):
        call.watch_agent(AgentStep("tool", f"echo {number}", "Bash", f"t{number}"))
    call.watch_agent(AgentUsage("s1", "sonnet", 2, 1_000, 50, 0.25))
    events = [event.fields for event in await told(activity, A)]
    steps = [event for event in events if event["type"] == "step"]
    assert [step["number"] for step in steps] == list(range(5, MAX_STEPS + 5))
    assert (steps[0]["tool"], steps[0]["text"], steps[0]["key"]) == ("Bash", "echo 5", "t5")
    used = [event for event in events if event["type"] == "usage"]
    assert [(one["turns"], one["input_tokens"], one["dollars"]) for one in used] == [(2, 1_000, 0.25)]


async def test_earlier_calls_come_from_the_journal_page_by_page(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        activity = Activity(journal)
        for number in range(MAX_CALLS + 20):
            ended = {"call": f"c{number}", "seconds": 0.1, "ending": "done", "error": False, "pictures": ["ab"]}
            journal.record(A, "call", {"call": f"c{number}", "tool": "view", "arguments": {"path": "/tmp"}})
            journal.record(A, "end", ended)
        step = {"kind": "tool", "tool": "Bash", "text": "ls", "key": "t"}
        journal.record(A, "call", {"call": "agent", "tool": "sub_agent"})
        journal.record(A, "agent", {"run": "r", "call": "agent", "event": "event", "text": "→ Bash: ls", "step": step})
        journal.record(A, "agent", {"run": "r", "call": "agent", "event": "ended", "usage": {"turns": 3}})
        journal.record(A, "call", {"call": "last", "tool": "view"})
        await journal.settle(A)
        events, more = await activity.earlier(A, "last")
        kinds = [event["type"] for event in events[-4:]]
        assert (kinds, more) == (["call", "step", "usage", "end"], True)
        first = next(event["id"] for event in events)
        assert first == "c21"
        assert events[1]["pictures"] == ["ab"]  # type: ignore[typeddict-item]
        rest, more = await activity.earlier(A, first)
        assert ([event["id"] for event in rest if event["type"] == "call"][-1], more) == ("c20", False)
        assert await activity.earlier(A, "nobody") == ([], False)
        assert await activity.earlier(B, "last") == ([], False)


def begun(activity: Activity, journal: Journal, id: str) -> Happening:
    """A call of A, as a tool tells of it and writes it down."""
    journal.record(A, "call", {"call": id, "tool": "view"})
    return activity.begin(A, "view", {}, id=id)


def over(journal: Journal, call: Happening) -> None:
    event = call.end(CallEnd("done"))
    journal.record(A, "end", {"call": call.id, "seconds": event["seconds"], "ending": "done", "error": False})


async def test_who_was_cut_off_misses_nothing_of_a_chat_that_made_room_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CHATS", 1)
    async with Journal(tmp_path) as journal:
        activity = Activity(journal)
        over(journal, begun(activity, journal, "seen"))
        last = (await told(activity, A))[-1]
        over(journal, begun(activity, journal, "missed"))
        activity.begin(B, "view", {})
        again = await told(activity, A, after=last.id)
        assert "missed" in {event.fields["id"] for event in again}
        activity.begin(B, "view", {})
        assert await told(activity, A, after=again[-1].id) == [], "who has all of it is told nothing again"
        activity.begin(B, "view", {})
        journal.record(A, "upload", {"path": "a", "size": 1})
        noted = await told(activity, A, after=again[-1].id)
        assert noted[-1].fields["type"] == "note"
        over(journal, begun(activity, journal, "new"))
        assert {event.fields["id"] for event in await told(activity, A, after=noted[-1].id)} == {"new"}


async def test_the_end_of_a_call_is_told_though_its_chat_made_room_while_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CHATS", 1)
    async with Journal(tmp_path) as journal:
        activity = Activity(journal)
        call = begun(activity, journal, "long")
        last = (await told(activity, A))[-1]
        activity.begin(B, "view", {})
        over(journal, call)
        assert [event.fields["type"] for event in await told(activity, A, after=last.id)][-1:] == ["end"]


async def test_memory_is_bounded() -> None:
    activity = Activity()
    call = activity.begin(A, "bash_tool", {f"argument {number}": "x" * 10**6 for number in range(200)})
    for _ in range(100):
        call.output("y" * 10**5)
        call._flush()
    activity.begin(A, "view", {"path": "z" * 40_000})
    assert activity._stories[A.digest].size <= MAX_TEXT
    running = activity.begin(A, "bash_tool", {"command": "sleep 1000"})
    for _ in range(2 * MAX_CALLS):
        activity.begin(A, "view", {"path": "/tmp"}).end(CallEnd("failed", "r" * 10**6))
    kept = {event.fields["id"] for event in await told(activity, A)}
    assert running.id in kept  # a call that still runs is the last to be forgotten
    assert len(kept) <= MAX_CALLS
    for i in range(2 * MAX_CHATS):
        activity.begin(Chat(f"c{i}"), "view", {})
    assert len(activity._stories) == MAX_CHATS
    assert activity._size == sum(story.size for story in activity._stories.values())
