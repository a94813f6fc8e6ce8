"""What an agent prints is read with care: it comes out of the sandbox."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cubicle.agents.adapters.base import AgentOutcome
from cubicle.agents.adapters.claude import ClaudeReader
from cubicle.agents.adapters.registry import ADAPTERS, chosen
from cubicle.agents.run_dir import EventLines
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
                assert all(isinstance(line, str) for line in shown)
                assert "$" not in reader.outcome.session


def test_a_turn_is_counted_once_whatever_comes_between_its_parts() -> None:
    reader = ClaudeReader()
    said = {"type": "assistant", "message": {"content": [{"type": "text", "text": "a"}]}}
    answered = {"type": "user", "message": {"content": []}}
    inner = {**said, "parent_tool_use_id": "t1"}
    for event in (said, {"type": "system"}, said, inner, answered, inner, {"type": "rate_limit_event"}, said):
        list(reader.read(event))
    assert reader.outcome == AgentOutcome(text="a", turns=2)


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
