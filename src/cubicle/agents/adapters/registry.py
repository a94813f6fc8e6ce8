"""Which coding agents there are, and which one the settings choose."""

from __future__ import annotations

from cubicle.agents.adapters.base import Adapter
from cubicle.agents.adapters.claude import Claude
from cubicle.agents.adapters.codex import Codex
from cubicle.agents.adapters.gemini import Gemini
from cubicle.agents.adapters.opencode import OpenCode
from cubicle.core.bad_settings import BadSettings

ADAPTERS: dict[str, Adapter] = {adapter.name: adapter for adapter in (Claude(), Codex(), OpenCode(), Gemini())}


def chosen(cli: str) -> Adapter:
    """The adapter for SUB_AGENT_CLI, be it a name or a path. Raises BadSettings."""
    name = cli.rstrip("/").rpartition("/")[2]
    if name not in ADAPTERS:
        raise BadSettings(f"SUB_AGENT_CLI: {name!r} is not one of {', '.join(ADAPTERS)}, nor a path to one.")
    return ADAPTERS[name]
