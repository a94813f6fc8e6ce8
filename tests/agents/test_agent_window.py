"""What a person sees of a run in the terminal: words, whichever agent wrote the events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cubicle.agents.scripts import agent_window

BASH = {"command": "ls -l", "description": "List"}


def claude(*content: dict[str, Any], role: str = "assistant") -> dict[str, Any]:
    return {"type": role, "message": {"content": list(content)}}


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (claude({"type": "text", "text": "I look."}), ["", "I look."]),
        (claude({"type": "tool_use", "name": "Bash", "input": BASH}), ["", "→ Bash  ls -l"]),
        (claude({"type": "tool_result", "content": "a\nb"}, role="user"), ["  a", "  b"]),
        (claude({"type": "tool_result", "content": [{"text": "a"}]}, role="user"), ["  a"]),
        ({"type": "item.started", "item": {"type": "command_execution", **BASH}}, ["", "→ command_execution  ls -l"]),
        ({"type": "item.completed", "item": {"type": "agent_message", "text": "Done."}}, ["", "Done."]),
        ({"type": "item.completed", "item": {"type": "command_execution", "aggregated_output": "x\n"}}, ["  x"]),
        ({"type": "text", "part": {"text": "Done."}}, ["", "Done."]),
        (
            {"type": "tool_use", "part": {"tool": "bash", "state": {"input": BASH, "output": "x"}}},
            ["", "→ bash  ls -l", "  x"],
        ),
        ({"type": "message", "role": "assistant", "content": "Done."}, ["", "Done."]),
        ({"type": "message", "role": "user", "content": "Do it."}, []),
        ({"type": "tool_use", "tool_name": "shell", "parameters": BASH}, ["", "→ shell  ls -l"]),
        ({"type": "tool_result", "output": "x"}, ["  x"]),
        ({"type": "system", "subtype": "init", "tools": ["Bash"]}, []),
        ({"type": "result", "result": "Done.", "total_cost_usd": 1}, []),
    ],
)
def test_events_of_every_agent_are_shown_in_words(
    event: dict[str, Any], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    agent_window.render(json.dumps(event))
    said = capsys.readouterr().out
    for style in (agent_window.BOLD, agent_window.DIM, agent_window.TOOL, agent_window.PLAIN):
        said = said.replace(style, "")
    assert said.splitlines() == lines


def test_long_results_are_cut_and_control_characters_do_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"type": "tool_result", "content": "\n".join(f"line {n}\033[2J" for n in range(40))}
    agent_window.render(json.dumps(claude(result, role="user")))
    said = capsys.readouterr().out
    assert "line 11" in said
    assert "line 12" not in said
    assert "… 28 more lines" in said
    assert "\033[2J" not in said


@pytest.mark.parametrize(
    "line", ["", "nonsense", "[" * 100_000, "5", '{"type": []}', '{"message": 5, "part": [], "item": "x"}']
)
def test_junk_shows_nothing(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    agent_window.render(line)
    assert capsys.readouterr().out == ""
