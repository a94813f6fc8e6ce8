"""Codex, OpenCode and Gemini CLI, the real programs, each against a fake of the API that it calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cubicle.agents import sessions
from cubicle.agents.adapters.registry import ADAPTERS
from cubicle.core.chat import Chat
from tests.agents.conftest import KEY, agents_service, emptied, image, program
from tests.agents.fake_api import FakeApi, Refuse, Say, Use
from tests.agents.fake_others import FakeGemini, FakeResponses
from tests.support.service import Service, serve, text

pytestmark = [pytest.mark.oci, pytest.mark.timeout(600), pytest.mark.real]


@dataclass
class Other:
    """One agent: its fake, how the settings name it, and how its model runs a command."""

    name: str
    fake: type[FakeApi]
    settings: dict[str, Any]
    make: Use
    needs: str = "usr/bin/tmux"
    """What of the image it needs."""


COMMAND = "echo made by it | tee ~/made"
OTHERS = [
    Other(
        "codex",
        FakeResponses,
        {"openai_api_key": KEY},
        Use("exec", {"raw": f"const r = await tools.exec_command({{cmd: '{COMMAND}'}}); text(r.output)"}),
    ),
    Other("opencode", FakeApi, {}, Use("bash", {"command": COMMAND, "description": "x"})),
    Other(
        "gemini",
        FakeGemini,
        {"gemini_api_key": KEY, "sub_agent_default_model": "gemini-2.5-pro"},
        Use("run_shell_command", {"command": COMMAND, "description": "x"}),
        "usr/local/bin/node",
    ),
]


@asynccontextmanager
async def running(other: Other, folder: Path, **settings: Any) -> AsyncIterator[tuple[Service, FakeApi]]:
    api = other.fake(KEY)
    async with serve(api.app()) as url, emptied(folder):
        given = {"sub_agent_cli": program(other.name), "openai_base_url": url, "gemini_base_url": url}
        given["sandbox_image"] = await asyncio.to_thread(image, other.needs)
        async with agents_service(folder, url, **{**given, **other.settings, **settings}) as service:
            yield service, api


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.name)
async def test_it_answers_uses_tools_fails_and_resumes(other: Other, tmp_path: Path) -> None:
    async with running(other, tmp_path) as (service, api):
        api.script = [other.make, Say("It is made.")]
        result = await service.call("sub_agent", {"prompt": "Make it."})
        assert not result["isError"], result
        assert text(result).startswith("It is made.\n\n[agent session "), result
        assert await service.bash("cat ~/made") == "made by it\n"
        found = re.search(r"\[agent session (\S+) · 2 turns", text(result))
        assert found, result

        async with service.fleet.lease(Chat("test")) as machine:
            (saved,) = await sessions.sessions(machine)
            page = await sessions.transcript(machine, found[1])
        assert (saved.session_id, saved.agent, saved.turns) == (found[1], other.name, 1)
        assert saved.model
        said = [(part["kind"], part["text"].strip()) for entry in page.entries for part in entry["parts"]]
        assert said[0] == ("text", "Make it.")
        assert [kind for kind, _ in said] == ["text", "tool", "result", "text"]
        assert said[2][1].endswith("made by it")
        assert said[3] == ("text", "It is made.")

        api.script = [Say("I go on.")]
        again = {"prompt": "Go on.", "resume_session_id": found[1]}
        result = await service.call("sub_agent", again)
        assert text(result).startswith("I go on.\n\n[agent session "), result
        assert "Make it." in str(api.requests[-1])

        api.script = [Refuse(400, "invalid_request_error", "the scripted reason")]
        result = await service.call("sub_agent", {"prompt": "Fail."})
        assert result["isError"], result
        assert "the scripted reason" in text(result)


def test_the_sessions_of_every_agent_are_listed() -> None:
    assert tuple(ADAPTERS) == sessions.AGENTS
