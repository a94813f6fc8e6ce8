"""Which coding agents there are, and which one the settings choose."""

from __future__ import annotations

from cubicle.settings import BadSettings
from cubicle.tools.agents.adapter import Adapter
from cubicle.tools.agents.claude import Claude
from cubicle.tools.agents.codex import Codex
from cubicle.tools.agents.gemini import Gemini
from cubicle.tools.agents.opencode import OpenCode

ADAPTERS: dict[str, Adapter] = {adapter.name: adapter for adapter in (Claude(), Codex(), OpenCode(), Gemini())}


def chosen(cli: str) -> Adapter:
    """The adapter for SUB_AGENT_CLI, be it a name or a path. Raises BadSettings."""
    name = cli.rstrip("/").rpartition("/")[2]
    if name not in ADAPTERS:
        raise BadSettings(f"SUB_AGENT_CLI: {name!r} is not one of {', '.join(ADAPTERS)}, nor a path to one.")
    return ADAPTERS[name]
