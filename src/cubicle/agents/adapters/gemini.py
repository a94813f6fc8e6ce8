"""Gemini CLI: `gemini --output-format stream-json`. It needs Node in the sandbox."""

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
from cubicle.machine.machine import HOME

_OWN_HOME = f"{HOME}/.cache/cubicle/gemini"


class Gemini:
    name = "gemini"
    api = "gemini"
    speaks_sse = True

    def command(self, program: str, order: AgentCommand) -> list[str]:
        session = ["--resume", order.resume] if order.resume else ["--session-id", order.session]
        model = ["--model", order.model] if order.model else []
        return [program, "--output-format", "stream-json", "--yolo", "--skip-trust", *model, *session]

    def take_over(self, program: str, session: str) -> list[str]:
        return [program, "--yolo", "--skip-trust", "--resume", session]

    def environment(self, order: AgentCommand) -> dict[str, str]:
        return {
            "GEMINI_API_KEY": order.carried,
            "GOOGLE_GEMINI_BASE_URL": order.address(self.api),
            "GEMINI_CLI_HOME": _OWN_HOME,  # a person's own settings stay as they are
        }

    def files(self, order: AgentCommand) -> dict[str, str]:
        servers: dict[str, object] = {}
        for server in order.servers:
            if server.url:
                headers = {"Authorization": "Bearer $GEMINI_API_KEY"}
                place = "url" if server.sse else "httpUrl"
                servers[server.name] = {place: order.server_address(server), "headers": headers, "trust": True}
            else:
                servers[server.name] = {"command": server.command[0], "args": list(server.command[1:]), "trust": True}
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
            "general": {"enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
            "model": {"maxSessionTurns": order.max_turns},
            "mcpServers": servers,
        }
        return {f"{_OWN_HOME}/.gemini/settings.json": json.dumps(settings)}

    def reader(self) -> GeminiReader:
        return GeminiReader()


class GeminiReader:
    def __init__(self) -> None:
        self.outcome = AgentOutcome(turns=1)
        self._speaking = False

    def read(self, event: Fields) -> Iterator[AgentStep]:
        outcome, kind = self.outcome, event.get("type")
        match kind:
            case "init":
                outcome.session = session_of(event.get("session_id"))
                outcome.model = text_of(event.get("model"), 100)
            case "message" if event.get("role") == "assistant":
                text = text_of(event.get("content"))
                outcome.text = outcome.text + text if self._speaking else text
                yield said(text)
            case "tool_use":
                tool, key = text_of(event.get("tool_name"), 100), text_of(event.get("tool_id"), 100)
                yield used(tool, event.get("parameters"), key)
            case "tool_result":
                outcome.turns += 1
                text, failed = text_of(event.get("output"), 2000), event.get("status") == "error"
                yield answered(text, text_of(event.get("tool_id"), 100), error=failed)
            case "error":
                yield noted(f"[{text_of(event.get('message'))}]")
            case "result":
                stats = fields_of(event.get("stats"))
                outcome.input_tokens = count_of(stats.get("input_tokens"))
                outcome.output_tokens = count_of(stats.get("output_tokens"))
                outcome.error = event.get("status") != "success"
                problem = text_of(fields_of(event.get("error")).get("message"))
                outcome.out_of_turns = "maximum session turns" in problem.lower()
                outcome.text = problem if outcome.error and problem else outcome.text
        self._speaking = kind == "message"
