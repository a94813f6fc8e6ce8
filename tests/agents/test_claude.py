"""The real Claude Code CLI in a sandbox, against a scripted Messages API."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import KEY, agents_service, emptied
from tests.agents.fake_api import Break, FakeApi, Refuse, Say, Use, Wait
from tests.support.service import Service, messages, raw_post, text

pytestmark = [pytest.mark.oci, pytest.mark.timeout(600), pytest.mark.real]

RUNNING = "pgrep -f [o]utput-format >/dev/null && echo running || echo over"


def session_of(result: dict[str, Any]) -> str:
    found = re.search(r"\[agent session ([0-9a-f-]{36}) ·", text(result))
    assert found, result
    return found[1]


def bash(command: str) -> Use:
    return Use("Bash", {"command": command, "description": "scripted"}, "Let me do that.")


async def test_a_plain_answer_comes_back_with_its_figures(service: Service, api: FakeApi) -> None:
    api.script = [Say("The answer is 42.")]
    result = await service.call("sub_agent", {"prompt": "What is the answer?"}, chat="one")
    assert not result["isError"], result
    assert text(result).startswith("The answer is 42.\n\n[agent session ")
    assert "· 1 turn · $" in text(result)
    assert api.headers[0]["x-api-key"] == KEY
    assert "What is the answer?" in json.dumps(api.requests[0]["messages"])


async def test_tools_work_in_the_sandbox_and_progress_is_told(service: Service, api: FakeApi) -> None:
    make = "echo made by the agent | tee ~/made; (id -u; touch /opt/agents/x) > ~/who 2>&1; true"
    api.script = [bash(make), Say("It is made.")]
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}
    params = {"name": "sub_agent", "arguments": {"prompt": "Make it."}, "_meta": {"progressToken": "p"}}
    sent = messages(await service.post({**body, "params": params}, chat="one"))
    told = "".join(m["params"]["message"] for m in sent if m.get("method") == "notifications/progress")
    for line in ("[agent session ", "[turn 1]", "→ Bash: echo made by the agent", "  made by the agent", "[turn 2]"):
        assert line in told
    assert text(sent[-1]["result"]).startswith("It is made.")
    assert "· 2 turns ·" in text(sent[-1]["result"])
    assert await service.bash("cat ~/made", chat="one") == "made by the agent\n"
    who = await service.bash("cat ~/who", chat="one")
    assert who.startswith("1000\n")
    assert "Read-only file system" in who


async def test_the_run_stops_at_its_most_turns_and_can_go_on(service: Service, api: FakeApi) -> None:
    api.script = [bash("true"), bash("true"), bash("true"), Say("never said")]
    result = await service.call("sub_agent", {"prompt": "Go on and on.", "max_turns": 2}, chat="one")
    assert result["isError"], result
    assert "[stopped after 2 turns, the most it may take]" in text(result)
    assert "resume_session_id" in text(result)
    api.script = [Say("Done after all.")]
    again = {"prompt": "Finish.", "resume_session_id": session_of(result)}
    result = await service.call("sub_agent", again, chat="one")
    assert not result["isError"], result
    assert text(result).startswith("Done after all.")


async def test_resuming_goes_on_with_the_new_prompt(service: Service, api: FakeApi) -> None:
    api.script = [Say("I remember: blue.")]
    first = await service.call("sub_agent", {"prompt": "Remember the colour blue."}, chat="one")
    api.script = [Say("It was blue.")]
    again = {"prompt": "Which colour was it?", "resume_session_id": session_of(first)}
    second = await service.call("sub_agent", again, chat="one")
    assert text(second).startswith("It was blue.")
    assert session_of(second) == session_of(first)
    conversation = json.dumps(api.requests[-1]["messages"])
    assert "Remember the colour blue." in conversation
    assert "Which colour was it?" in conversation


async def test_an_unknown_session_is_an_error_that_says_so(service: Service, api: FakeApi) -> None:
    unknown = {"prompt": "Go on.", "resume_session_id": "11111111-2222-4333-8444-555555555555"}
    result = await service.call("sub_agent", unknown, chat="one")
    assert result["isError"], result
    assert "No conversation found" in text(result)
    result = await service.call("sub_agent", {"prompt": "x", "resume_session_id": "--help"}, chat="one")
    assert result["isError"], result
    assert "is not a session id" in text(result)


async def test_a_cancelled_call_ends_the_agent(service: Service, api: FakeApi) -> None:
    api.script = [bash("tail -f /dev/null"), Say("never said")]
    call = {"jsonrpc": "2.0", "id": 91, "method": "tools/call"}
    call["params"] = {"name": "sub_agent", "arguments": {"prompt": "Sleep."}}
    async with raw_post(service.url, call, "X-Chat-Id: cancel") as reader:
        await until(service, "pgrep -fx 'tail -f /dev/null'", "cancel")
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 91}}
        assert (await service.post(note, chat="cancel")).status_code == 202
        rest = await asyncio.wait_for(reader.read(), 100)
    assert b"cancelled" in rest
    await until(service, f"test $({RUNNING}) = over && ! pgrep -fx 'tail -f /dev/null'", "cancel")


async def test_a_run_that_takes_too_long_is_ended(tmp_path: Path, api: FakeApi, api_url: str) -> None:
    api.script = [bash("tail -f /dev/null"), Say("never said")]
    async with emptied(tmp_path), agents_service(tmp_path, api_url, sub_agent_timeout=10) as service:
        result = await service.call("sub_agent", {"prompt": "Sleep."})
        assert result["isError"], result
        assert "[timed out after 10 s]" in text(result)
        await until(service, f"test $({RUNNING}) = over", "test")


async def test_an_error_of_the_api_is_told(service: Service, api: FakeApi) -> None:
    api.script = [Refuse(400, "invalid_request_error", "the scripted reason")]
    result = await service.call("sub_agent", {"prompt": "Hello."}, chat="one")
    assert result["isError"], result
    assert "the scripted reason" in text(result)


async def test_a_slow_api_is_waited_for(service: Service, api: FakeApi) -> None:
    api.script = [Wait(4), Say("Late but here.")]
    result = await service.call("sub_agent", {"prompt": "Hello."}, chat="one")
    assert text(result).startswith("Late but here.")


async def test_an_api_that_breaks_off_is_asked_again(service: Service, api: FakeApi) -> None:
    api.script = [Break(), Say("Whole this time.")]
    result = await service.call("sub_agent", {"prompt": "Hello."}, chat="one")
    assert text(result).startswith("Whole this time."), result
    assert len(api.requests) >= 2


async def test_a_wrong_key_is_an_error_that_does_not_show_it(tmp_path: Path, api: FakeApi, api_url: str) -> None:
    async with emptied(tmp_path), agents_service(tmp_path, api_url, anthropic_api_key="sk-wrong") as service:
        result = await service.call("sub_agent", {"prompt": "Hello."})
    assert result["isError"], result
    assert "ANTHROPIC_API_KEY" in text(result)
    assert "sk-wrong" not in json.dumps(result)


async def test_a_spent_budget_stops_the_agent_and_says_so(tmp_path: Path, api: FakeApi, api_url: str) -> None:
    costly = Use("Bash", {"command": "true", "description": "x"}, tokens=200_000)
    api.script = [costly, Say("never said")]
    async with emptied(tmp_path):
        async with agents_service(tmp_path, api_url, sub_agent_budget_usd=1) as service:
            result = await service.call("sub_agent", {"prompt": "Spend."})
            assert result["isError"], result
            assert "The budget of this chat is spent" in text(result)
            assert len(api.requests) == 1
            other = await service.call("sub_agent", {"prompt": "Another chat has its own."}, chat="other")
            assert not other["isError"]
        async with agents_service(tmp_path, api_url, sub_agent_budget_usd=1) as service:
            result = await service.call("sub_agent", {"prompt": "Spend after a restart."})
            assert "The budget of this chat is spent" in text(result)


@pytest.mark.parametrize(("alias", "model"), [("opus", "gateway-opus"), (None, "gateway-sonnet")])
async def test_an_alias_stands_for_the_model_that_the_settings_name(
    tmp_path: Path, api: FakeApi, api_url: str, alias: str | None, model: str
) -> None:
    settings = {
        "anthropic_default_opus_model": "gateway-opus",
        "anthropic_default_sonnet_model": "gateway-sonnet",
        "sub_agent_default_model": "sonnet",
        "anthropic_api_key": "",
        "anthropic_auth_token": KEY,
        "anthropic_custom_headers": "X-Team: blue\nX-Cost: 7",
    }
    async with emptied(tmp_path), agents_service(tmp_path, api_url, **settings) as service:  # type: ignore[arg-type]
        arguments = {"prompt": "Hello."} | ({"model": alias} if alias else {})
        result = await service.call("sub_agent", arguments)
    assert not result["isError"], result
    assert api.requests[0]["model"] == model
    assert api.headers[0]["authorization"] == f"Bearer {KEY}"
    assert (api.headers[0]["x-team"], api.headers[0]["x-cost"]) == ("blue", "7")


async def until(service: Service, command: str, chat: str, limit: float = 150) -> None:
    """Wait until a command in the sandbox succeeds."""
    async with asyncio.timeout(limit):
        arguments = {"command": f"({command}) || exit 3", "description": "test"}
        while (await service.call("bash_tool", arguments, chat=chat))["isError"]:
            await asyncio.sleep(0.5)
