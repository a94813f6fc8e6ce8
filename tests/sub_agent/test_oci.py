"""The whole of it: `cubicle serve`, the embedded driver, the real agent behind real walls."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubicle import settings
from cubicle.app import make_driver
from cubicle.drivers.oci.images import ImageStore
from tests.drivers.makers import some_base
from tests.emptying import empty
from tests.sub_agent.conftest import KEY, program
from tests.sub_agent.fake_api import FakeApi, Say
from tests.sub_agent.test_claude import bash
from tests.sub_agent.test_survival import sub_agent
from tests.survival.process import ServiceProcess

pytestmark = [pytest.mark.oci, pytest.mark.timeout(300)]


@pytest.fixture
def image() -> str:
    return some_base(ImageStore(settings.load().image_dir)).digest


async def test_the_agent_works_in_a_real_sandbox(tmp_path: Path, image: str, api: FakeApi, api_url: str) -> None:
    program("claude")
    search = f"grep -la {KEY[:10]}'{KEY[10:]}' /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null"
    api.script = [bash(f"id -u > ~/made; touch /opt/agents/x 2>> ~/made; {search} >> ~/made; true"), Say("It is made.")]
    environment = {"DRIVER": "oci", "SANDBOX_IMAGE": image, "POOL_SIZE": "0", "SUB_AGENT_CLI": "claude"}
    environment |= {"ANTHROPIC_BASE_URL": api_url, "ANTHROPIC_API_KEY": KEY}
    service = ServiceProcess(tmp_path / "data", **environment)
    driver = make_driver(settings.load(data_dir=tmp_path / "data", sandbox_image=image))
    try:
        await service.start()
        headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": "one"}
        answer = await service.client.post("/mcp", json=sub_agent(prompt="Make it."), headers=headers)
        assert "It is made." in answer.text, answer.text
        failed, said = await service.bash("one", "cat ~/made; tmux list-windows -t main -F '#{window_name}'")
        assert not failed
        lines = said.splitlines()
        assert lines[0] == "1000"
        assert "Read-only file system" in lines[1]
        assert lines[-1].startswith("agent-")
        assert len(lines) == 4, lines  # the first window is a shell
    finally:
        service.kill()
        await service.client.aclose()
        await empty(driver)
