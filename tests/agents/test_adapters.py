"""What an agent prints is read with care: it comes out of the sandbox."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cubicle.agents.adapters.base import AgentOutcome
from cubicle.agents.adapters.claude import ClaudeReader
from cubicle.agents.adapters.registry import ADAPTERS, chosen
from cubicle.agents.run_dir import EventLines
from cubicle.chat.agent_steps import AgentUsage
from cubicle.settings import BadSettings

NASTY: list[Any] = [None, 7, -1, 1e400, True, "", "x\n$(reboot)", [], [[]], {}, {"type": []}, "a" * 3_000_000]
FIELDS = ("type", "session_id", "sessionID", "thread_id", "message", "item", "part", "error", "result", "num_turns")
KINDS = (
    *("assistant", "user", "result", "system", "thread.started", "item.started", "item.completed", "turn.failed"),
    *("error", "step_start", "step_finish", "text", "tool_use", "tool_result", "init", "message"),
)


@pytest.mark.parametrize("name", ADAPTERS)
def test_no_event_breaks_a_reader(name: str) -> None:
    for kind in KINDS:
        for field in FIELDS:
            for value in NASTY:
                reader = ADAPTERS[name].reader()
                shown = list(reader.read({"type": kind, "role": "assistant", field: value}))
                assert all(isinstance(step.line, str) for step in shown)
                assert "$" not in reader.outcome.session


def test_a_turn_is_counted_once_whatever_comes_between_its_parts() -> None:
    reader = ClaudeReader()
    said = {"type": "assistant", "message": {"content": [{"type": "text", "text": "a"}]}}
    answered = {"type": "user", "message": {"content": []}}
    inner = {**said, "parent_tool_use_id": "t1"}
    for event in (said, {"type": "system"}, said, inner, answered, inner, {"type": "rate_limit_event"}, said):
        list(reader.read(event))
    assert reader.outcome == AgentOutcome(text="a", turns=2)


def test_the_steps_of_an_agent_say_which_tool_gave_which_result_and_what_was_used() -> None:
    reader = ClaudeReader()
    usage = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5}
    message = {"id": "m1", "model": "sonnet", "usage": usage}
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
    inner = {"type": "tool_use", "id": "t2", "name": "Read", "input": {"file_path": "/a"}}
    gave = {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True}
    events = [
        {"type": "assistant", "message": {**message, "content": [{"type": "text", "text": "I look."}]}},
        {"type": "assistant", "message": {**message, "content": [use]}},
        {"type": "assistant", "parent_tool_use_id": "t1", "message": {**message, "id": "m2", "content": [inner]}},
        {"type": "user", "message": {"content": [gave]}},
    ]
    steps = [step for event in events for step in reader.read(event)]
    assert [step.kind for step in steps] == ["turn", "text", "tool", "tool", "result"]
    assert (steps[2].tool, steps[2].text, steps[2].key, steps[2].line) == ("Bash", "ls", "t1", "→ Bash: ls")
    assert (steps[3].parent, steps[4].key, steps[4].error, steps[4].line) == ("t1", "t1", True, "  failed: no")
    assert reader.outcome.usage == AgentUsage(model="sonnet", turns=1, input_tokens=200, output_tokens=10)


USED: dict[str, dict[str, Any]] = {
    "claude": {"type": "result", "usage": {"input_tokens": 7, "cache_creation_input_tokens": 5, "output_tokens": 3}},
    "codex": {"type": "turn.completed", "usage": {"input_tokens": 12, "output_tokens": 3}},
    "gemini": {"type": "result", "stats": {"input_tokens": 12, "output_tokens": 3}},
    "opencode": {"type": "step_finish", "part": {"tokens": {"input": 7, "output": 3, "cache": {"read": 5}}}},
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_agent_tells_its_tokens(name: str) -> None:
    reader = ADAPTERS[name].reader()
    list(reader.read(USED[name]))
    assert (reader.outcome.input_tokens, reader.outcome.output_tokens) == (12, 3)


def test_lines_are_found_however_the_output_is_cut() -> None:
    output = b'noise\n{"a": 1}\n[1]\n{broken\n{"b": 2}\n{"unfinished": '
    for step in (1, 3, 1000):
        lines = EventLines()
        found = [event for start in range(0, len(output), step) for event in lines.feed(output[start : start + step])]
        assert found == [{"a": 1}, {"b": 2}]


def test_a_line_without_end_costs_bounded_memory_and_is_passed_over() -> None:
    lines = EventLines()
    for _ in range(20):
        assert list(lines.feed(b'{"a": "' + b"x" * 1024**2)) == []
    assert list(lines.feed(b'"}\n' + json.dumps({"b": 2}).encode() + b"\n")) == [{"b": 2}]


def test_a_cli_is_chosen_by_name_or_path() -> None:
    assert chosen("claude") is chosen("/opt/somewhere/claude")
    with pytest.raises(BadSettings, match="SUB_AGENT_CLI: 'vim' is not one of claude, codex, opencode, gemini"):
        chosen("/usr/bin/vim")
