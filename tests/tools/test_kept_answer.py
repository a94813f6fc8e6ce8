"""An answer comes out of the journal as it was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cubicle.chat.activity_events import EndEvent
from cubicle.core.arguments_hash import arguments_hash
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal
from cubicle.tools.base import Answer, Call, ImageContent, TextContent
from cubicle.tools.call_record import CallRecord
from cubicle.tools.kept_answer import read_answer
from cubicle.tools.output import cap

CHAT = Chat("room-1")
END: EndEvent = {"type": "end", "id": "", "seconds": 1.0, "ending": "done", "error": False, "result": "", "notes": []}

ANSWERS = [
    ("", Answer((TextContent("(no output)"),), notes=())),
    (
        "out\n",
        Answer((TextContent("out\n[exit code 1]"), TextContent("Note: more")), error=True, notes=("[exit code 1]",)),
    ),
    ("é\x1b[31m\0" * 20_000, Answer((TextContent(cap("é\x1b[31m\0" * 20_000)),), notes=())),
    ("", Answer((TextContent("x" * 100_000),))),
    ("\U0001f600" * 30_000, Answer((TextContent("\U0001f600" * 30_000 + "[exit code 1]"),), notes=("[exit code 1]",))),
    ("\U0001f600" * 90_000, Answer((TextContent(cap("\U0001f600" * 90_000)),), notes=())),
    ("", Answer((TextContent("\U0001f600" * 4_000),) * 10)),
    ("progress", Answer((ImageContent(b"\x89PNG" * 1000, "image/png"), TextContent("a picture \ud800")))),
]


@pytest.mark.parametrize(("printed", "answer"), ANSWERS)
async def test_an_answer_comes_back_whole(printed: str, answer: Answer, tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        call = Call(Caller(CHAT), identity="key")
        record = CallRecord(journal, call)
        record.begin("bash_tool", {"command": "x", "description": "y"}, "")
        for place in range(0, len(printed), 1000):
            record.output(printed[place : place + 1000])
        record.end({**END, "error": answer.error}, answer)
        assert await journal.settle(CHAT)
        found = await journal.find_call(CHAT, "key")
        assert found is not None
        assert found.end is not None
        assert found.begin.fields["arguments_hash"] == arguments_hash("bash_tool", {"description": "y", "command": "x"})
        kept = await read_answer(journal, CHAT, found.end.fields)
        assert kept is not None
        assert (kept.blocks, kept.error) == (answer.blocks, answer.error)


async def test_an_answer_that_is_too_large_is_not_given_again_in_part(tmp_path: Path) -> None:
    async with Journal(tmp_path, limit=256 * 1024) as journal:
        call = Call(Caller(CHAT), identity="key")
        record = CallRecord(journal, call)
        record.begin("view", {}, "")
        record.end(END, Answer((ImageContent(b"x" * 200_000, "image/png"), TextContent("text"))))
        found = await journal.find_call(CHAT, "key")
        assert found is not None
        assert found.end is not None
        assert await read_answer(journal, CHAT, found.end.fields) is None


async def test_a_call_is_never_without_its_identity_however_long_it_is(tmp_path: Path) -> None:
    arguments = {f"{n}" + "\U0001f600" * 98: "\U0001f600" * 16_000 for n in range(60)}
    async with Journal(tmp_path) as journal:
        record = CallRecord(journal, Call(Caller(CHAT), identity="key", command="c" * 32, arguments_hash="h"))
        record.begin("bash_tool", {"description": "\U0001f600" * 9_000, **arguments}, "\U0001f600" * 300)
        found = await journal.find_call(CHAT, "key")
        assert found is not None
        assert "shortened" not in found.begin.fields
        journal.record(CHAT, "end", {"call": found.begin.fields["call"], "answer": [{"text": "x" * 300_000}]})
        found = await journal.find_call(CHAT, "key")
        assert found is not None
        assert found.end is not None
        assert await read_answer(journal, CHAT, found.end.fields) is None
        fields = {"call": "b", "identity": "other", "arguments_hash": "h", "command": "c"}
        journal.record(CHAT, "call", {**fields, "lists": [["\U0001f600" * 2_000] * 50] * 50})
        found = await journal.find_call(CHAT, "other")
        assert found is not None
        assert found.begin.fields.items() > fields.items()


def test_other_arguments_have_another_hash() -> None:
    hashes = {
        arguments_hash("a", {"x": "1", "y": "2"}),
        arguments_hash("a", {"x": "12", "y": ""}),
        arguments_hash("a", {"x": 1, "y": "2"}),
        arguments_hash("b", {"x": "1", "y": "2"}),
        arguments_hash("a", {"x": ["1"], "y": "\ud800"}),
    }
    assert len(hashes) == 5
    assert arguments_hash("a", {"y": {"b": 1, "a": 2}, "x": 1}) == arguments_hash("a", {"x": 1, "y": {"a": 2, "b": 1}})


def test_a_large_value_that_is_no_text_is_hashed_without_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """To write 50 MB as JSON holds up the event loop for half a second, from whatever thread."""
    written: list[object] = []
    plain = json.dumps

    def dumps(value: object, **options: Any) -> str:
        written.append(value)
        return plain(value, **options)

    monkeypatch.setattr(json, "dumps", dumps)
    long = "x" * 2_000_000
    hashes = {
        arguments_hash("a", {"x": value})
        for value in (long, [long], [[long]], [long, 1], {"a": long}, {"a": long, "b": 1}, ["a", long], [f"{long}y"])
    }
    assert len(hashes) == 8
    same = ({"a": long, "b": {"c": 1, "d": [2]}}, {"b": {"d": [2], "c": 1}, "a": long})
    assert arguments_hash("a", {"x": same[0]}) == arguments_hash("a", {"x": same[1]})
    assert all(len(plain(value)) < 100 for value in written)
