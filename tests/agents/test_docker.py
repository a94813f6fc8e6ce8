"""The same agent on a Docker engine: the driver mounts the programs, and all else is as anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubicle import settings
from tests.agents.conftest import KEY, agents_service, emptied
from tests.agents.fake_api import FakeApi, Say
from tests.agents.test_claude import bash
from tests.support.service import text

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


async def test_the_agent_works_in_a_container(tmp_path: Path, api: FakeApi, api_url: str) -> None:
    api.script = [bash("(id -u; touch /opt/agents/x) > ~/made 2>&1; true"), Say("It is made.")]
    engine = {"driver": "docker", "docker_host": settings.load().docker_host}
    async with emptied(tmp_path, **engine), agents_service(tmp_path, api_url, **engine) as service:  # type: ignore[arg-type]
        result = await service.call("sub_agent", {"prompt": "Make it."})
        assert text(result).startswith("It is made."), result
        assert api.headers[0]["x-api-key"] == KEY
        said = await service.bash("cat ~/made; tmux list-windows -t main -F '#{window_name}'")
    who, refused, *windows = said.splitlines()
    assert who == "1000"
    assert "Read-only file system" in refused
    assert windows[-1].startswith("agent-")
