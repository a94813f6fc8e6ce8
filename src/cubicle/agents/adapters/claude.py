"""Claude Code: `claude -p`, newline-delimited JSON out."""

from __future__ import annotations

import json
from collections.abc import Iterator

from cubicle.agents.adapters.base import (
    AgentCommand,
    AgentOutcome,
    Fields,
    answered,
    count_of,
    fields_of,
    items_of,
    noted,
    number_of,
    said,
    session_of,
    text_of,
    turn,
    used,
)
from cubicle.agents.scripts import program as inside
from cubicle.chat.agent_steps import AgentStep

_AT_HAND = inside("claude_at_hand")
_MAX_KEY = 100
_HINT = "You work in a sandbox of your own, without a person to ask. /home/assistant/README.md says what is where."


class Claude:
    name = "claude"
    api = "anthropic"
    speaks_sse = True

    def command(self, program: str, order: AgentCommand) -> list[str]:
        session = ["--resume", order.resume] if order.resume else ["--session-id", order.session]
        model = ["--model", order.model] if order.model else []
        return [
            *(program, "--print", "--output-format", "stream-json", "--verbose"),
            *("--dangerously-skip-permissions", "--max-turns", str(order.max_turns)),
            *("--append-system-prompt", _HINT),
            *("--strict-mcp-config", "--mcp-config", f"{order.folder}/mcp.json"),
            *model,
            *session,
        ]

    def take_over(self, program: str, session: str) -> list[str]:
        return [
            *("python3", "-I", "-S", "-c", _AT_HAND),
            *(program, "--settings", json.dumps({"skipDangerousModePermissionPrompt": True})),
            *("--dangerously-skip-permissions", "--resume", session),
        ]

    def environment(self, order: AgentCommand) -> dict[str, str]:
        aliases = {f"ANTHROPIC_DEFAULT_{alias.upper()}_MODEL": model for alias, model in order.aliases.items()}
        return {
            "ANTHROPIC_BASE_URL": order.address(self.api),
            "ANTHROPIC_AUTH_TOKEN": order.carried,
            "IS_SANDBOX": "1",
            "ENABLE_TOOL_SEARCH": "false",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "8",  # about a minute: a service that restarts is back by then
            **aliases,
        }

    def files(self, order: AgentCommand) -> dict[str, str]:
        servers: dict[str, object] = {}
        for server in order.servers:
            if server.url:
                headers = {"Authorization": f"Bearer {order.carried}"}
                kind = "sse" if server.sse else "http"
                servers[server.name] = {"type": kind, "url": order.server_address(server), "headers": headers}
            else:
                servers[server.name] = {"command": server.command[0], "args": list(server.command[1:])}
        return {"mcp.json": json.dumps({"mcpServers": servers})}

    def reader(self) -> ClaudeReader:
        return ClaudeReader()


class ClaudeReader:
    def __init__(self) -> None:
        self.outcome = AgentOutcome()
        self._answering = False
        self._message = ("", 0, 0)
        """The id of the message that came last, and the tokens that were counted for it."""

    def read(self, event: Fields) -> Iterator[AgentStep]:
        kind, inner = event.get("type"), text_of(event.get("parent_tool_use_id"), _MAX_KEY)
        if session := session_of(event.get("session_id")):
            self.outcome.session = session
        if kind == "assistant":
            if not self._answering and not inner:
                self.outcome.turns += 1
                yield turn(self.outcome.turns)
            yield from self._assistant(fields_of(event.get("message")), inner)
        elif kind == "user":
            for part in items_of(fields_of(event.get("message")).get("content")):
                if part.get("type") == "tool_result":
                    yield _result(part, inner)
        elif kind == "result":
            self._end(event)
        elif kind == "system" and event.get("subtype") == "api_retry":
            yield noted(f"[the model's API does not answer; attempt {str(event.get('attempt'))[:20]}]")
        if not inner and kind in ("assistant", "user"):
            self._answering = kind == "assistant"

    def _assistant(self, message: Fields, inner: str) -> Iterator[AgentStep]:
        self._count(message)
        for part in items_of(message.get("content")):
            if part.get("type") == "text" and (text := text_of(part.get("text"))):
                if not inner:
                    self.outcome.text = text
                yield said(text, inner)
            elif part.get("type") == "tool_use":
                key = text_of(part.get("id"), _MAX_KEY)
                yield used(text_of(part.get("name"), 100), part.get("input"), key, inner)

    def _count(self, message: Fields) -> None:
        """Each part of a message comes with the usage of all of it: it counts once."""
        outcome, id, usage = self.outcome, text_of(message.get("id"), _MAX_KEY), fields_of(message.get("usage"))
        outcome.model = text_of(message.get("model"), 100) or outcome.model
        if not usage:
            return
        given, made = _tokens(usage)
        before = self._message if id and self._message[0] == id else ("", 0, 0)
        outcome.input_tokens += given - before[1]
        outcome.output_tokens += made - before[2]
        self._message = (id, given, made)

    def _end(self, event: Fields) -> None:
        outcome = self.outcome
        # `subtype` says success for failures, too.
        outcome.error = event.get("is_error") is not False
        outcome.out_of_turns = event.get("subtype") == "error_max_turns"
        outcome.turns = int(number_of(event.get("num_turns"))) or outcome.turns
        outcome.dollars = number_of(event.get("total_cost_usd"))
        outcome.text = text_of(event.get("result")) or outcome.text
        if usage := fields_of(event.get("usage")):
            given, made = _tokens(usage)  # of the run without the agents that it started itself
            outcome.input_tokens = max(outcome.input_tokens, given)
            outcome.output_tokens = max(outcome.output_tokens, made)


def _tokens(usage: Fields) -> tuple[int, int]:
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(count_of(usage.get(name)) for name in names), count_of(usage.get("output_tokens"))


def _result(part: Fields, inner: str) -> AgentStep:
    content = part.get("content")
    text = content if isinstance(content, str) else " ".join(text_of(one.get("text")) for one in items_of(content))
    return answered(text[:2000], text_of(part.get("tool_use_id"), _MAX_KEY), inner, error=part.get("is_error") is True)
