"""Coding agents of a sandbox: saved sessions, what they say, processes, and the end of a stuck one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from cubicle.sandbox.machine import Machine
from tests.live.ground import Service

pytestmark = [pytest.mark.anyio, pytest.mark.real]

FOLDER = "/home/assistant/.claude/projects/-home-assistant"


def said(role: str, content: Any, at: str, **more: Any) -> str:
    message = {"role": role, "content": content, **({"model": "claude-opus-4"} if role == "assistant" else {})}
    return json.dumps({"type": role, "message": message, "timestamp": at, "cwd": "/home/assistant", **more})


async def save(machine: Machine, name: str, *lines: str) -> None:
    await machine.write(f"{FOLDER}/{name}.jsonl", "\n".join(lines).encode() + b"\n")


async def test_sessions_are_listed_newest_first_and_read_page_by_page(
    service: Service, http: httpx.AsyncClient
) -> None:
    async with service.machine("told") as machine:
        await save(
            machine,
            "11111111-aaaa",
            said("user", "Fix the <b>bug</b>", "2026-01-01T10:00:00.000Z"),
            said("assistant", [{"type": "text", "text": "I look."}], "2026-01-01T10:00:05.000Z"),
            said(
                "assistant", [{"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}], "2026-01-01T10:00:06Z"
            ),
            said(
                "user", [{"type": "tool_result", "content": [{"type": "text", "text": "a.py"}]}], "2026-01-01T10:00:07Z"
            ),
            said("user", "and now?", "2026-01-01T10:01:00.000Z"),
        )
        await save(machine, "22222222-bbbb", said("user", "hello", "2026-02-01T10:00:00.000Z"))
        listed = (await http.get("/terminal/told/sessions")).json()["sessions"]
        assert [session["session_id"] for session in listed] == ["22222222-bbbb", "11111111-aaaa"]
        assert listed[1] == {
            "session_id": "11111111-aaaa",
            "started_at": "2026-01-01T10:00:00.000Z",
            "updated_at": "2026-01-01T10:01:00.000Z",
            "model": "claude-opus-4",
            "turns": 2,
            "title": "Fix the <b>bug</b>",
        }
        page = (await http.get("/terminal/told/sessions/11111111-aaaa")).json()
        assert page["next"] is None
        assert [(e["role"], e["parts"][0]["kind"], e["parts"][0]["text"]) for e in page["entries"]] == [
            ("user", "text", "Fix the <b>bug</b>"),
            ("assistant", "text", "I look."),
            ("assistant", "tool", 'Bash {"command": "ls"}'),
            ("user", "result", "a.py"),
            ("user", "text", "and now?"),
        ]
        for name in ("33333333", "..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd"):
            assert (await http.get(f"/terminal/told/sessions/{name}")).status_code == 404


async def test_a_long_session_comes_in_pages(service: Service, http: httpx.AsyncClient) -> None:
    async with service.machine("long") as machine:
        lines = [said("user", f"line {n} " + "x" * 30_000, "2026-01-01T10:00:00Z") for n in range(230)]
        await save(machine, "long-1", *lines)
        seen, after = [], 0
        while after is not None:
            page = (await http.get(f"/terminal/long/sessions/long-1?after={after}")).json()
            seen += [entry["parts"][0] for entry in page["entries"]]
            after = page["next"]
        assert [part["text"].split()[1] for part in seen] == [str(n) for n in range(230)]
        assert {(len(part["text"]), part["cut"]) for part in seen} == {(16384, True)}


async def test_hostile_session_files_harm_nobody(service: Service, http: httpx.AsyncClient) -> None:
    async with service.machine("hostile") as machine:
        deep = "[" * 100_000
        await save(machine, "bad-1", "not json", deep, "null", "5", '{"type": 7, "message": [], "timestamp": {}}')
        await save(machine, "bad-2", '{"type":"user","message":{"content":{"a":1}},"timestamp":"<script>"}', "\x00\xff")
        await save(machine, "good", said("user", "x\u0000\ud800y", "2026-01-01T10:00:00Z", model={"a": 1}))
        await machine.output(
            f"cd {FOLDER} && ln -s /etc/passwd evil.jsonl && mkdir dir.jsonl && mkfifo pipe.jsonl && "
            "head -c 9000000 /dev/zero | tr '\\0' 'a' > big.jsonl && printf '\\n{\"type\":\"user\","
            '"message":{"content":"after"},"timestamp":"2026-01-02T00:00:00Z"}\\n\' >> big.jsonl',
            timeout=30,
        )
        listed = (await http.get("/terminal/hostile/sessions")).json()["sessions"]
        names = {session["session_id"]: session for session in listed}
        assert {"good", "big"} <= set(names)
        assert "evil" not in names
        assert names["big"]["turns"] == 1
        assert (await http.get("/terminal/hostile/sessions/good")).status_code == 200


async def test_only_coding_agents_are_listed_and_killed(service: Service, http: httpx.AsyncClient) -> None:
    async with service.machine("busy") as machine:
        agent = (
            "#!/usr/bin/python3\nimport os,signal,time\nsignal.signal(15, signal.SIG_IGN)\nos.fork()\ntime.sleep(600)\n"
        )
        await machine.write("/home/assistant/bin/claude", agent.encode(), mode=0o755)
        await machine.output(
            "cp /bin/sleep bin/codex; setsid bin/codex 600 & setsid bin/claude & sleep 600 &", timeout=5
        )
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(10):
            while len(found) < 3:
                found = (await http.get("/terminal/busy/processes")).json()["processes"]
        assert {frozenset(process) for process in found} == {
            frozenset({"pid", "command", "started_at", "cpu_seconds", "memory_bytes"})
        }
        commands = {process["command"]: process["pid"] for process in found}
        assert any(command.startswith("bin/codex 600") for command in commands)
        _, output = await machine.output("pgrep -x sleep | head -1", timeout=5)
        assert (await http.post(f"/terminal/busy/processes/{int(output)}/kill")).status_code == 404
        assert (await http.post("/terminal/busy/processes/1/kill")).status_code == 404
        stubborn = min(process["pid"] for process in found if "claude" in process["command"])
        answer = await http.post(f"/terminal/busy/processes/{stubborn}/kill")
        assert answer.json() == {"killed": True, "pid": stubborn}
        left = (await http.get("/terminal/busy/processes")).json()["processes"]
        assert ["codex" in process["command"] for process in left] == [True]
        assert (await http.post(f"/terminal/busy/processes/{stubborn}/kill")).status_code == 404
