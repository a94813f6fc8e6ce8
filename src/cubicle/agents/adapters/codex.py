"""Codex: `codex exec --json`, against OpenAI's Responses API."""

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
    noted,
    said,
    session_of,
    text_of,
    used,
)
from cubicle.chat.agent_steps import AgentStep

_PASS = "CUBICLE_PASS"  # noqa: S105 — the name of a variable


class Codex:
    name = "codex"
    api = "openai"
    speaks_sse = False

    def command(self, program: str, order: AgentCommand) -> list[str]:
        model = ["--model", order.model] if order.model else []
        session = ["resume", order.resume] if order.resume else []
        return [
            *(program, "exec", *session, "--json", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", *model, *self._config(order), "-"),
        ]

    def _config(self, order: AgentCommand) -> list[str]:
        # Codex reads the values as TOML, in which JSON's texts and lists are the same.
        values = {
            "model_provider": "cubicle",
            "model_providers.cubicle.name": "cubicle",
            "model_providers.cubicle.base_url": order.address(self.api),
            "model_providers.cubicle.env_key": _PASS,
            "model_providers.cubicle.wire_api": "responses",
        }
        pairs = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        for server in order.servers:
            place = f"mcp_servers.{server.name}"
            if server.url:
                pairs.append(f"{place}.url={json.dumps(order.server_address(server))}")
                pairs.append(f"{place}.bearer_token_env_var={json.dumps(_PASS)}")
            else:
                pairs.append(f"{place}.command={json.dumps(server.command[0])}")
                pairs.append(f"{place}.args={json.dumps(list(server.command[1:]))}")
        return [word for pair in pairs for word in ("-c", pair)]

    def take_over(self, program: str, session: str) -> list[str]:
        order = AgentCommand("", "", 0, "", "")
        return [program, "resume", session, "--dangerously-bypass-approvals-and-sandbox", *self._config(order)]

    def environment(self, order: AgentCommand) -> dict[str, str]:
        return {_PASS: order.carried}

    def files(self, order: AgentCommand) -> dict[str, str]:
        return {}

    def reader(self) -> CodexReader:
        return CodexReader()


class CodexReader:
    """Codex counts a whole run as one turn; here a turn is what comes between two answers to tools."""

    def __init__(self) -> None:
        self.outcome = AgentOutcome(turns=1)

    def read(self, event: Fields) -> Iterator[AgentStep]:
        item, outcome = fields_of(event.get("item")), self.outcome
        match event.get("type"):
            case "thread.started":
                outcome.session = session_of(event.get("thread_id"))
            case "item.started" if item.get("type") in ("command_execution", "mcp_tool_call", "file_change"):
                yield _used(item)
            case "item.completed" if item.get("type") == "agent_message":
                outcome.text = text_of(item.get("text"))
                yield said(outcome.text)
            case "item.completed" if item.get("type") != "reasoning":
                outcome.turns += 1
                failed = item.get("status") == "failed"
                yield answered(text_of(item.get("aggregated_output"), 2000), text_of(item.get("id"), 100), error=failed)
            case "turn.completed":
                outcome.error = False
                usage = fields_of(event.get("usage"))
                outcome.input_tokens += count_of(usage.get("input_tokens"))
                outcome.output_tokens += count_of(usage.get("output_tokens"))
            case "turn.failed":
                outcome.error = True
                outcome.text = text_of(fields_of(event.get("error")).get("message")) or outcome.text
            case "error":
                yield noted(f"[{text_of(event.get('message'))}]")


def _used(item: Fields) -> AgentStep:
    tool = text_of(item.get("tool"), 100) or text_of(item.get("type"), 100)
    return used(tool, {"command": text_of(item.get("command"))}, text_of(item.get("id"), 100))
