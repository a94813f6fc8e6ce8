"""The real Claude Code CLI in a sandbox, against a scripted Messages API."""

from __future__ import annotations

from tests.service import Service, text
from tests.sub_agent.conftest import KEY
from tests.sub_agent.fake_api import FakeApi, Say, Use


async def test_a_plain_answer_comes_back_with_its_figures(service: Service, api: FakeApi) -> None:
    api.script = [Say("The answer is 42.")]
    result = await service.call("sub_agent", {"prompt": "What is the answer?"})
    assert not result["isError"], result
    assert text(result).startswith("The answer is 42.\n\n[agent session ")
    assert "· 1 turn · $" in text(result)
    assert api.headers[0]["x-api-key"] == KEY
