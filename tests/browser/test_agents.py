"""Coding agents of a sandbox: saved sessions, what they say, processes, and the end of a stuck one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from cubicle.machine.machine import Machine
from tests.browser.ground import Service

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
            "agent": "claude",
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
        refused = await http.post("/terminal/told/sessions/11111111-aaaa/resume")
        assert (refused.status_code, "has no key" in refused.json()["detail"]) == (409, True)
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
            timeout=60,
        )
        listed = (await http.get("/terminal/hostile/sessions")).json()["sessions"]
        names = {session["session_id"]: session for session in listed}
        assert {"good", "big"} <= set(names)
        assert "evil" not in names
        assert names["big"]["turns"] == 1
        assert (await http.get("/terminal/hostile/sessions/good")).status_code == 200


def rollout(name: str) -> str:
    return f".codex/sessions/2026/01/01/rollout-2026-01-01T10-00-00-{name}.jsonl"


async def test_hostile_sessions_of_the_other_agents_harm_nobody_either(
    service: Service, http: httpx.AsyncClient
) -> None:
    async with service.machine("hostile-too") as machine:
        asked = {"type": "UserMessage", "content": [{"type": "text", "text": "hello"}]}
        good = {"type": "event_msg", "timestamp": "2026-01-01T10:00:00Z", "payload": {"item": asked}}
        deep = (
            '{"type":"response_item","payload":{"type":"function_call","arguments":' + '{"a":' * 900 + "1" + "}" * 902
        )
        names = [f"{n}0000000-1111-4222-8333-444444444444" for n in range(2)]
        bad = '{"type":"response_item","payload":[]}\n{"payload":{"item":7},"type":"event_msg","timestamp":9}\n[]\n'
        await machine.write(f"/home/assistant/{rollout(names[0])}", (json.dumps(good) + "\n" + bad + deep).encode())
        await machine.write(f"/home/assistant/{rollout(names[1])}", bad.encode())
        chats = "/home/assistant/.gemini/tmp/x/chats"
        lines = [
            {"sessionId": {"a": 1}, "type": "user", "content": [5, {"text": {}}], "id": []},
            {"type": "gemini", "toolCalls": [{"args": 5}, 5], "thoughts": 5, "content": 7, "id": []},
            {"type": "user", "content": [{"text": "hi"}], "timestamp": "2026-01-02T10:00:00Z"},
        ]
        await machine.write(f"{chats}/session-1.jsonl", "\n".join(map(json.dumps, lines)).encode())
        # A table that never ends, rows of the wrong kind, and no JSON where it should be.
        script = """
import os, sqlite3
os.makedirs(".local/share/opencode", exist_ok=True)
db = sqlite3.connect(".local/share/opencode/opencode.db")
db.execute("CREATE TABLE session (id, title, model, time_created, time_updated)")
db.execute("CREATE TABLE message (id, session_id, time_created, data)")
db.execute("CREATE VIEW part AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT '{' AS data, 'm' AS message_id, x AS id FROM n")
db.execute("INSERT INTO session VALUES (x'00ff', 5, 5, 'x', 1e300), ('ses_1', 'A <b>', '[[', 1e30, 2), ('../x', 'y', '', 3, 4)")
db.execute("INSERT INTO message VALUES ('m', 'ses_1', 'x', '{'), ('k', 'ses_1', 1, 5)")
db.commit()
"""
        await machine.write("/home/assistant/make.py", script.encode())
        await machine.output("python3 make.py", timeout=60)
        listed = {
            one["session_id"]: one for one in (await http.get("/terminal/hostile-too/sessions")).json()["sessions"]
        }
        assert {name: one["agent"] for name, one in listed.items()} == {
            names[0]: "codex",
            "session-1": "gemini",
            "ses_1": "opencode",
        }
        assert listed[names[0]]["title"] == "hello"
        assert listed["ses_1"]["title"] == "A <b>"
        for name, said in ((names[0], "hello"), ("session-1", "hi")):
            page = (await http.get(f"/terminal/hostile-too/sessions/{name}")).json()
            assert said in [part["text"] for entry in page["entries"] for part in entry["parts"]]
        async with asyncio.timeout(100):
            page = (await http.get("/terminal/hostile-too/sessions/ses_1")).json()
        assert page["entries"] == []


async def test_only_coding_agents_are_listed_and_killed(service: Service, http: httpx.AsyncClient) -> None:
    async with service.machine("busy") as machine:
        agent = (
            "#!/usr/bin/python3\nimport os,signal,time\nsignal.signal(15, signal.SIG_IGN)\nos.fork()\ntime.sleep(600)\n"
        )
        await machine.write("/home/assistant/bin/claude", agent.encode(), mode=0o755)
        await machine.output(
            "cp /bin/sleep bin/codex; setsid bin/codex 600 & setsid bin/claude & sleep 600 &", timeout=60
        )
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            while len(found) < 3:
                found = (await http.get("/terminal/busy/processes")).json()["processes"]
        assert {frozenset(process) for process in found} == {
            frozenset({"pid", "command", "started_at", "cpu_seconds", "memory_bytes"})
        }
        commands = {process["command"]: process["pid"] for process in found}
        assert any(command.startswith("bin/codex 600") for command in commands)
        _, output = await machine.output("until pgrep -x sleep; do :; done | head -1", timeout=60)
        assert (await http.post(f"/terminal/busy/processes/{int(output)}/kill")).status_code == 404
        assert (await http.post("/terminal/busy/processes/1/kill")).status_code == 404
        stubborn = min(process["pid"] for process in found if "claude" in process["command"])
        answer = await http.post(f"/terminal/busy/processes/{stubborn}/kill")
        assert answer.json() == {"killed": True, "pid": stubborn}
        async with asyncio.timeout(60):  # what it started goes with it, and may take its time to die
            while len(left := (await http.get("/terminal/busy/processes")).json()["processes"]) > 1:
                await asyncio.sleep(0.05)
        assert ["codex" in process["command"] for process in left] == [True]
        assert (await http.post(f"/terminal/busy/processes/{stubborn}/kill")).status_code == 404
