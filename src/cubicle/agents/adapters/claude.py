"""Claude Code: `claude -p`, newline-delimited JSON out."""

from __future__ import annotations

import json
from collections.abc import Iterator

from cubicle.agents.adapters.base import (
    AgentCommand,
    AgentOutcome,
    Fields,
    fields_of,
    items_of,
    number_of,
    session_of,
    short,
    text_of,
    used,
)
from cubicle.agents.scripts import program as inside

_AT_HAND = inside("claude_at_hand")
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

    def read(self, event: Fields) -> Iterator[str]:
        kind, inner = event.get("type"), event.get("parent_tool_use_id")
        if session := session_of(event.get("session_id")):
            self.outcome.session = session
        if kind == "assistant":
            if not self._answering and not inner:
                self.outcome.turns += 1
                yield f"[turn {self.outcome.turns}]"
            yield from self._assistant(fields_of(event.get("message")), nested=bool(inner))
        elif kind == "user":
            for part in items_of(fields_of(event.get("message")).get("content")):
                if part.get("type") == "tool_result":
                    yield _result(part)
        elif kind == "result":
            self._end(event)
        elif kind == "system" and event.get("subtype") == "api_retry":
            yield short(f"[the model's API does not answer; attempt {event.get('attempt')}]")
        if not inner and kind in ("assistant", "user"):
            self._answering = kind == "assistant"

    def _assistant(self, message: Fields, *, nested: bool) -> Iterator[str]:
        for part in items_of(message.get("content")):
            if part.get("type") == "text" and (text := text_of(part.get("text"))):
                if not nested:
                    self.outcome.text = text
                yield text
            elif part.get("type") == "tool_use":
                yield used(text_of(part.get("name"), 100), part.get("input"))

    def _end(self, event: Fields) -> None:
        outcome = self.outcome
        # `subtype` says success for failures, too.
        outcome.error = event.get("is_error") is not False
        outcome.out_of_turns = event.get("subtype") == "error_max_turns"
        outcome.turns = int(number_of(event.get("num_turns"))) or outcome.turns
        outcome.dollars = number_of(event.get("total_cost_usd"))
        outcome.text = text_of(event.get("result")) or outcome.text


def _result(part: Fields) -> str:
    content = part.get("content")
    text = content if isinstance(content, str) else " ".join(text_of(one.get("text")) for one in items_of(content))
    return "  " + short(f"{'failed: ' if part.get('is_error') is True else ''}{text[:2000]}")
