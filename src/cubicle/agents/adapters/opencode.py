"""OpenCode: `opencode run --format json`, here with Anthropic's API."""

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
    number_of,
    said,
    session_of,
    text_of,
    turn,
    used,
)
from cubicle.chat.agent_steps import AgentStep

_DEFAULT_MODEL = "claude-sonnet-4-5"


class OpenCode:
    name = "opencode"
    api = "anthropic"
    speaks_sse = True

    def command(self, program: str, order: AgentCommand) -> list[str]:
        session = ["--session", order.resume] if order.resume else []
        return [program, "run", "--format", "json", "--auto", "--model", f"anthropic/{_model(order)}", *session]

    def take_over(self, program: str, session: str) -> list[str]:
        return [program, "--session", session]

    def environment(self, order: AgentCommand) -> dict[str, str]:
        servers: dict[str, object] = {}
        for server in order.servers:
            if server.url:
                headers = {"Authorization": f"Bearer {order.carried}"}
                address = order.server_address(server)
                servers[server.name] = {"type": "remote", "url": address, "headers": headers, "oauth": False}
            else:
                servers[server.name] = {"type": "local", "command": list(server.command)}
        options = {"baseURL": f"{order.address(self.api)}/v1", "apiKey": order.carried}
        model = _model(order)
        config = {
            "autoupdate": False,
            "share": "disabled",
            # A model of a gateway is not in OpenCode's list; named here, it is.
            "provider": {"anthropic": {"options": options, "models": {model: {}}}},
            "small_model": f"anthropic/{model}",
            "mcp": servers,
        }
        return {
            "OPENCODE_CONFIG_CONTENT": json.dumps(config),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }

    def files(self, order: AgentCommand) -> dict[str, str]:
        return {}

    def reader(self) -> OpenCodeReader:
        return OpenCodeReader()


def _model(order: AgentCommand) -> str:
    return order.model if order.model not in ("", "sonnet", "opus", "haiku") else _DEFAULT_MODEL


class OpenCodeReader:
    def __init__(self) -> None:
        self.outcome = AgentOutcome()

    def read(self, event: Fields) -> Iterator[AgentStep]:
        part, outcome = fields_of(event.get("part")), self.outcome
        outcome.session = session_of(event.get("sessionID")) or outcome.session
        match event.get("type"):
            case "step_start":
                outcome.turns += 1
                yield turn(outcome.turns)
            case "text":
                outcome.text = text_of(part.get("text"))
                yield said(outcome.text)
            case "tool_use":
                state, key = fields_of(part.get("state")), text_of(part.get("callID"), 100)
                yield used(text_of(part.get("tool"), 100), state.get("input"), key)
                result, problem = text_of(state.get("output"), 2000), text_of(state.get("error"), 2000)
                yield answered(result or problem, key, error=not result and bool(problem))
            case "step_finish":
                tokens = fields_of(part.get("tokens"))
                cache = fields_of(tokens.get("cache"))
                outcome.input_tokens += count_of(tokens.get("input"))
                outcome.input_tokens += count_of(cache.get("read")) + count_of(cache.get("write"))
                outcome.output_tokens += count_of(tokens.get("output")) + count_of(tokens.get("reasoning"))
                outcome.dollars = (outcome.dollars or 0) + number_of(part.get("cost"))
                if part.get("reason") != "tool-calls":
                    outcome.error = False
            case "error":
                error = fields_of(event.get("error"))
                outcome.error = True
                outcome.text = text_of(fields_of(error.get("data")).get("message")) or text_of(error.get("name"))
