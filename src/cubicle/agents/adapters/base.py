"""What an adapter of a coding agent gives: a command, its surroundings, and a reader of its events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cubicle.agents.gateway import ADDRESS
from cubicle.agents.mcp_servers import McpServer
from cubicle.chat.agent_steps import AgentStep, AgentUsage

SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_MAX_LINE = 500

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """One run, as an adapter must know it."""

    folder: str
    """A folder of the sandbox, this run's own."""
    model: str
    max_turns: int
    carried: str = field(repr=False)
    """The token that the agent shows to the relay."""
    session: str
    """The id that a new session gets, where the agent lets others choose it."""
    resume: str | None = None
    servers: tuple[McpServer, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def address(self, api: str) -> str:
        """Where in the sandbox the agent finds a model's API."""
        return f"{ADDRESS}/{api}"

    def server_address(self, server: McpServer) -> str:
        return f"{ADDRESS}/mcp/{server.name}"


@dataclass(slots=True)
class AgentOutcome:
    """What is known of a run so far."""

    session: str = ""
    text: str = ""
    error: bool | None = None
    """None until the agent itself says how it ended."""
    turns: int = 0
    dollars: float | None = None
    out_of_turns: bool = False
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def usage(self) -> AgentUsage:
        return AgentUsage(self.session, self.model, self.turns, self.input_tokens, self.output_tokens, self.dollars)


class EventReader(Protocol):
    """Understands one run's events, in order."""

    outcome: AgentOutcome

    def read(self, event: Fields) -> Iterator[AgentStep]:
        """Take in one event; gives the steps of it that are worth showing."""
        ...


class Adapter(Protocol):
    """One coding agent."""

    name: str
    api: str
    """The API that it calls: a name of `agents/upstreams.py`."""
    speaks_sse: bool
    """Whether it can use MCP servers of the type sse."""

    def command(self, program: str, order: AgentCommand) -> list[str]:
        """The run without a person; the prompt is on its standard input."""
        ...

    def take_over(self, program: str, session: str) -> list[str]:
        """The same session with a person at the terminal."""
        ...

    def environment(self, order: AgentCommand) -> dict[str, str]: ...

    def files(self, order: AgentCommand) -> dict[str, str]:
        """Files that it needs: name in the run's folder, or whole path, to content."""
        ...

    def reader(self) -> EventReader: ...


def text_of(value: Any, most: int = 1_000_000) -> str:
    """A text from the sandbox, or nothing."""
    return value[:most] if isinstance(value, str) else ""


def session_of(value: Any) -> str:
    """A session's id, or nothing: it ends up in command lines and in answers."""
    return value if isinstance(value, str) and SESSION.fullmatch(value) else ""


def number_of(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9 else 0.0


def fields_of(value: Any) -> Fields:
    return value if isinstance(value, dict) else {}


def items_of(value: Any) -> list[Fields]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def short(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 1] + "…"


def count_of(value: Any) -> int:
    return int(number_of(value))


def said(text: str, parent: str = "") -> AgentStep:
    return AgentStep("text", text, parent=parent)


def noted(text: str) -> AgentStep:
    return AgentStep("note", short(text))


def turn(number: int) -> AgentStep:
    return AgentStep("turn", f"[turn {number}]")


def used(tool: str, arguments: Any, key: str = "", parent: str = "") -> AgentStep:
    """A tool that is used: with the argument that says most."""
    given = fields_of(arguments)
    text = ""
    for name in ("command", "file_path", "filePath", "path", "pattern", "query", "url", "description", "prompt"):
        if isinstance(value := given.get(name), str):
            text = value
            break
        if isinstance(value, list):
            text = " ".join(map(str, value[:100]))
            break
    return AgentStep("tool", short(text), short(tool), key, parent)


def answered(text: str, key: str = "", parent: str = "", *, error: bool = False) -> AgentStep:
    """What a tool gave back, in short."""
    return AgentStep("result", short(text), key=key, parent=parent, error=error)
