"""What the page of the replay is told of each entry of a journal."""

from __future__ import annotations

import json

import pytest

from cubicle.journal.format import Entry
from cubicle.journal.timeline import step_of


def test_a_call_is_told_by_what_it_is_for_and_what_was_asked() -> None:
    fields = {
        "call": "c1", "tool": "bash_tool", "description": "List files", "user": "a@b.c", "identity": "secret",
        "arguments": {"command": "ls\n-la"},
    }  # fmt: skip
    step = step_of(Entry(3, 10.5, "call", fields))
    assert step == {
        "n": 3, "at": 10.5, "kind": "call", "call": "c1", "tool": "bash_tool", "title": "List files",
        "text": "ls\n-la", "user": "a@b.c",
    }  # fmt: skip
    untold = step_of(Entry(3, 10.5, "call", {**fields, "description": ""}))
    assert untold is not None
    assert untold.get("title") == "ls"


def test_an_end_has_the_end_of_what_was_printed() -> None:
    fields = {"call": "c1", "error": True, "exit_code": 3, "seconds": 1.5, "head": "a" * 9000, "tail": "end", "cut": 5}
    step = step_of(Entry(4, 11, "end", fields))
    assert step is not None
    assert (step.get("error"), step.get("exit_code"), step.get("seconds")) == (True, 3, 1.5)
    assert len(step.get("text", "")) == 4001
    assert step.get("text", "").startswith("…a")
    assert step.get("text", "").endswith("aend")
    answered = step_of(Entry(4, 11, "end", {"call": "c1", "error": False, "result": "done"}))
    assert answered is not None
    assert (answered.get("text"), answered.get("error"), answered.get("exit_code")) == ("done", False, None)


@pytest.mark.parametrize("kind", ["output", "detached"])
def test_what_stands_elsewhere_is_left_out(kind: str) -> None:
    assert step_of(Entry(1, 1, kind, {"call": "c", "text": "x"})) is None


@pytest.mark.parametrize(
    ("kind", "fields", "title"),
    [
        ("upload", {"path": "a.txt"}, "Uploaded a.txt"),
        ("takeover", {"what": "browser"}, "Somebody opened the browser"),
        ("handback", {"what": "browser", "user": "Ann", "seconds": 9}, "Ann gave back the browser"),
        ("edit", {"what": "saved", "path": "a.txt"}, "Saved a.txt"),
        ("edit", {"what": "renamed", "path": "a.txt", "to": "b.txt"}, "Renamed a.txt to b.txt"),
        ("edit", {"what": 3}, "Changed "),
        ("egress", {"host": "e.org", "reason": "Not listed."}, "Not let through: e.org. Not listed."),
        ("lifecycle", {"what": "stopped"}, "Sandbox stopped."),
        ("agent", {"event": "started", "text": "x"}, "Coding agent: started x"),
        ("undo", {"path": "a"}, "Took back the change of a"),
        ("gap", {"why": "full disk"}, "The journal is incomplete here. full disk"),
        ("of-a-newer-service" * 9, {}, ("of-a-newer-service" * 9)[:40]),
    ],
)
def test_everything_else_is_one_sentence(kind: str, fields: dict[str, object], title: str) -> None:
    step = step_of(Entry(1, 1, kind, fields))
    assert step is not None
    assert step.get("title") == title


@pytest.mark.parametrize(
    "kind", ["call", "end", "upload", "takeover", "handback", "edit", "egress", "lifecycle", "agent", "undo", "gap"]
)
@pytest.mark.parametrize("value", [None, 7, "x" * 10**6, ["a"], {"command": {"deep": 1}}, float("nan"), True])
def test_fields_of_any_kind_make_a_short_step(kind: str, value: object) -> None:
    names = ("call", "tool", "description", "arguments", "user", "error", "exit_code", "seconds", "head", "tail", "cut",
             "result", "path", "what", "host", "reason", "event", "text", "why", "to")  # fmt: skip
    step = step_of(Entry(1, 1, kind, dict.fromkeys(names, value)))
    assert step is not None
    assert len(json.dumps(step)) < 10_000
