"""A run goes on without its caller, and without the service; its result is not lost."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cubicle.agents import sessions
from cubicle.core.chat import Chat
from cubicle.journal import reading
from tests.agents.conftest import KEY, emptied, image, program
from tests.agents.fake_api import FakeApi, Say
from tests.agents.test_claude import bash, until
from tests.support.process import ServiceProcess
from tests.support.service import Service, raw_post, text

pytestmark = [pytest.mark.oci, pytest.mark.timeout(600), pytest.mark.real]

GATE = bash("until test -e ~/go; do read -t 0.2 < <(:) || true; done; echo went on")


def sub_agent(**arguments: Any) -> dict[str, Any]:
    params = {"name": "sub_agent", "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}


async def session_in(reader: asyncio.StreamReader) -> str:
    """The session id that the progress of a run tells first."""
    heard = b""
    async with asyncio.timeout(150):
        while not (found := re.search(rb"agent session ([0-9a-f-]{36})\]", heard)):
            chunk = await reader.read(65536)
            assert chunk, heard
            heard += chunk
    return found[1].decode()


async def test_a_run_goes_on_when_its_caller_is_gone_and_tells_whoever_resumes(service: Service, api: FakeApi) -> None:
    api.script = [GATE, Say("Finished while nobody looked."), Say("Here is more.")]
    async with raw_post(service.url, sub_agent(prompt="Work."), "X-Chat-Id: away") as reader:
        session = await session_in(reader)
    await until(service, "test -d ~/.cache/cubicle/agents && pgrep -f [o]utput-format", "away")
    resume = {"prompt": "And now?", "resume_session_id": session}
    resumed = asyncio.create_task(service.call("sub_agent", resume, chat="away"))
    await until(service, "touch ~/go", "away")
    said = text(await resumed)
    assert "It said:\nFinished while nobody looked." in said
    assert "\n\nHere is more.\n\n" in said
    assert "And now?" in json.dumps(api.requests[-1]["messages"])
    api.script = [Say("Nothing was missed.")]
    assert text(await service.call("sub_agent", resume, chat="away")).startswith("Nothing was missed.")


async def test_a_person_sees_the_run_in_the_terminal(service: Service, api: FakeApi) -> None:
    api.script = [bash("echo shown; until test -e ~/go2; do read -t 0.2 < <(:) || true; done"), Say("The end.")]
    run = asyncio.create_task(service.call("sub_agent", {"prompt": "Be seen."}, chat="away"))
    shown = "tmux capture-pane -p -t main:$(tmux list-windows -t main -F '#{window_name}' | tail -n 1)"
    await until(service, f"{shown} | grep -q 'echo shown'", "away")
    screen = await service.bash(shown, chat="away")
    assert "Be seen." in screen
    assert "Let me do that." in screen
    assert '{"' not in screen
    # Nobody was at the terminal: whoever opens it now finds the agent.
    active = await service.bash("tmux display -p -t main '#{window_name} #{status}'", chat="away")
    assert re.fullmatch(r"agent-[0-9a-f]{12} on\n", active)
    async with (
        service.fleet.lease(Chat("away")) as machine,
        machine.run(["tmux", "attach", "-t", "main"], pty=(100, 30), env={"TERM": "xterm-256color"}) as viewer,
    ):
        seen = b""
        async for _, chunk in viewer.output:  # a person who comes while it runs sees what it does
            seen += chunk
            if b"echo shown" in seen:
                break
        await viewer.kill()  # and is cut off, with the terminal
    assert not run.done()
    assert "Be seen." in await service.bash(shown, chat="away")
    await service.bash("tmux kill-server; touch ~/go2", chat="away")
    assert text(await run).startswith("The end.")


async def test_a_killed_service_finds_the_run_again(tmp_path: Path, api: FakeApi, api_url: str) -> None:
    api.script = [GATE, Say("Finished without the service."), Say("Both are told.")]
    data = tmp_path / "data"
    data.mkdir()
    environment = {"DRIVER": "oci", "SANDBOX_IMAGE": await asyncio.to_thread(image), "POOL_SIZE": "0"}
    environment |= {"SUB_AGENT_CLI": program("claude")}
    environment |= {"ANTHROPIC_BASE_URL": api_url, "ANTHROPIC_API_KEY": KEY, "MCP_API_KEY": ""}
    async with emptied(data):
        service = ServiceProcess(data, **environment)
        try:
            await service.start()
            url = f"http://127.0.0.1:{service.port}"
            async with raw_post(url, sub_agent(prompt="Work."), "X-Chat-Id: one") as reader:
                session = await session_in(reader)
                await asyncio.wait_for(api.asked.wait(), 150)
                service.kill()
            await service.start()
            failed, _ = await service.bash("one", "pgrep -f [o]utput-format && touch ~/go")
            assert not failed, service.log()[-3000:]
            headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": "one"}
            resume = sub_agent(prompt="And now?", resume_session_id=session)
            answer = await service.client.post("/mcp", json=resume, headers=headers)
            assert "Finished without the service." in answer.text
            assert "Both are told." in answer.text
            await resumed_by_a_person(service, session)
            folder = data / "journal" / Chat("one").digest
            found = await asyncio.to_thread(reading.read_entries, folder)
            assert [dict(entry.fields) for entry in found if entry.kind == "takeover"] == [
                {"what": "agent", "user": ""}
            ]
        finally:
            service.kill()
            await service.client.aclose()


async def test_a_repeated_call_finds_the_run_after_a_kill_and_starts_no_other(
    tmp_path: Path, api: FakeApi, api_url: str
) -> None:
    api.script = [GATE, Say("Finished without the service.")]
    data = tmp_path / "data"
    data.mkdir()
    environment = {"DRIVER": "oci", "SANDBOX_IMAGE": await asyncio.to_thread(image), "POOL_SIZE": "0"}
    environment |= {"SUB_AGENT_CLI": program("claude")}
    environment |= {"ANTHROPIC_BASE_URL": api_url, "ANTHROPIC_API_KEY": KEY, "MCP_API_KEY": ""}
    async with emptied(data):
        service = ServiceProcess(data, **environment)
        try:
            await service.start()
            url = f"http://127.0.0.1:{service.port}"
            async with raw_post(url, sub_agent(prompt="Work."), "X-Chat-Id: one", "Idempotency-Key: k") as reader:
                await session_in(reader)
                await asyncio.wait_for(api.asked.wait(), 150)
                service.kill()
            await service.start()
            headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": "one", "Idempotency-Key": "k"}
            again = asyncio.create_task(service.client.post("/mcp", json=sub_agent(prompt="Work."), headers=headers))
            failed, said = await service.bash("one", "pgrep -fc [o]utput-format; touch ~/go")
            assert not failed, said
            assert "Finished without the service." in (await again).text
            asked = len(api.requests)
            assert (
                "Finished without the service."
                in (await service.client.post("/mcp", json=sub_agent(prompt="Work."), headers=headers)).text
            )
            assert len(api.requests) == asked
            prompts = [request for request in api.requests if "Work." in json.dumps(request["messages"])]
            assert {json.dumps(request["messages"][0]) for request in prompts} == {
                json.dumps(prompts[0]["messages"][0])
            }
        finally:
            service.kill()
            await service.client.aclose()


async def resumed_by_a_person(service: ServiceProcess, session: str) -> None:
    """The button of the page: the session opens in the terminal, and another's does not."""
    base = "/terminal/one/sessions"
    assert (await service.client.post(f"{base}/no-such-session/resume")).status_code == 404
    answer = await service.client.post(f"{base}/{session}/resume")
    assert answer.json() == {"resumed": True, "session_id": session}
    shown = "tmux capture-pane -p -t main | grep 'bypass permissions on' && tmux capture-pane -p -t main"
    async with asyncio.timeout(150):
        while (said := await service.bash("one", f"({shown}) || exit 3"))[0]:
            await asyncio.sleep(0.5)
    assert "Both are told." in said[1]


async def test_a_person_can_take_the_session_over(service: Service, api: FakeApi) -> None:
    api.script = [bash("tail -f /dev/null"), Say("never said")]
    run = asyncio.create_task(service.call("sub_agent", {"prompt": "Be taken over."}, chat="taken"))
    await until(service, "pgrep -fx 'tail -f /dev/null'", "taken")
    window = "main:$(tmux list-windows -t main -F '#{window_name}' | tail -n 1)"
    await service.bash(f"tmux send-keys -t {window} Enter", chat="taken")
    await until(service, f"tmux capture-pane -p -t {window} | grep 'Stop the agent'", "taken")
    await service.bash(f"tmux send-keys -t {window} y Enter", chat="taken")
    result = await run
    assert result["isError"]
    assert "[the agent was ended by signal 15]" in text(result)
    # No question of a first start is in the way: what was said stands there, and a line to type in.
    await until(service, f"tmux capture-pane -p -t {window} | grep 'bypass permissions on'", "taken")
    assert "Be taken over." in await service.bash(f"tmux capture-pane -p -t {window}", chat="taken")


async def test_sessions_and_processes_of_agents_are_listed_and_one_can_be_killed(
    service: Service, api: FakeApi
) -> None:
    api.script = [bash("tail -f /dev/null"), Say("never said")]
    run = asyncio.create_task(service.call("sub_agent", {"prompt": "Be listed."}, chat="listed"))
    await until(service, "pgrep -fx 'tail -f /dev/null'", "listed")
    async with service.fleet.lease(Chat("listed")) as machine:
        session = (await sessions.sessions(machine))[0]
        process = next(p for p in await sessions.processes(machine) if "--output-format" in p.command)
        said = await sessions.transcript(machine, session.session_id)
        await sessions.kill(machine, process.pid)
    assert session.title == "Be listed."
    assert "Be listed." in json.dumps(said.record())
    result = await run
    assert result["isError"]
    assert f"[agent session {session.session_id} ·" in text(result)
