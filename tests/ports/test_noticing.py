"""Ports that come and go: what the guest tells, what bash_tool says, what runs again after a wake."""

from __future__ import annotations

import asyncio
import json

import pytest

from cubicle.core.chat import Chat
from cubicle.ports.services import MAX_SERVICES, BadServices, StartCommands, parse
from tests.ports.conftest import CHAT, Ground
from tests.support.process import free_port

PAGE = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Accept": "text/html"}


async def test_the_answer_of_a_command_ends_with_the_ports_that_it_opened(ground: Ground) -> None:
    chat, port = Chat("noticing", "acme"), free_port()
    assert "listening" not in await ground.bash(chat, "true")
    await ground.put(chat, "my-app.py", b"import http.server, sys\nhttp.server.test(port=int(sys.argv[1]))\n")
    wait = f"until : 2>/dev/null </dev/tcp/127.0.0.1/{port}; do sleep 0.05; done"
    told = await ground.bash(chat, f"echo ready; python3 my-app.py {port} >log 2>&1 & {wait}")
    assert told == f"ready\n\nlistening: {port} my-app → {ground.links.link(chat, port)}"
    assert "listening" not in await ground.bash(chat, "true")
    gone = f"kill $(pgrep -f [m]y-app); while : 2>/dev/null </dev/tcp/127.0.0.1/{port}; do sleep 0.05; done"
    assert "listening" not in await ground.bash(chat, gone)
    again = await ground.bash(chat, f"python3 -m http.server {port} >log 2>&1 & {wait}")
    assert again.endswith(f"listening: {port} http.server → {ground.links.link(chat, port)}")


LATE = b"""
import socket, sys, time
time.sleep(0.1)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(1000)
"""


@pytest.mark.parametrize("rest", ["", " echo started"])
async def test_a_server_in_the_background_has_a_moment_to_open_its_port(ground: Ground, rest: str) -> None:
    """The way that the tool's description names: its port opens after the command has ended."""
    chat = Chat("background", "acme")
    await ground.put(chat, "late.py", LATE)
    for _ in range(10):  # on a busy machine the moment may be too short for it
        port = free_port()
        told = await ground.bash(chat, f"nohup python3 -S late.py {port} > late.log 2>&1 &{rest}")
        if f"listening: {port} late → {ground.links.link(chat, port)}" in told:
            return
    pytest.fail(told)


async def test_the_egress_proxy_s_ports_are_closed(ground: Ground, program: int) -> None:
    shown = await ground.bash(CHAT, "echo $HTTP_PROXY")
    port = int(shown.strip().rstrip("/").rpartition(":")[2])
    async with ground.client(CHAT, port) as client:
        assert (await client.get("/")).status_code == 403


async def test_the_prompt_says_how_links_are_formed(ground: Ground) -> None:
    prompt = await ground.service.client.get("/system-prompt", params={"chat_id": CHAT.id}, headers=ground.key(CHAT))
    assert f"`{ground.links.template(CHAT)}`" in prompt.text
    token = ground.links.template(CHAT).partition("?cubicle-key=")[2]
    port = await ground.start(CHAT)
    async with ground.client(CHAT, port, by="nothing") as client:
        answer = await client.get(f"/?cubicle-key={token}", headers=PAGE)
        assert answer.status_code == 303
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        assert (await client.get("/", headers={"Cookie": cookie})).status_code == 200
        other = {"Host": ground.host(CHAT, port + 1), "Cookie": cookie}
        assert (await client.get("/", headers=other)).status_code == 401


async def test_declared_commands_run_again_after_a_wake(ground: Ground) -> None:
    chat, port = Chat("again", "acme"), free_port()
    await ground.bash(chat, "mkdir -p app .cubicle")
    services = {
        "web": {"command": f"echo started; exec python3 -m http.server {port}", "cwd": "/home/assistant/app"},
        "broken": {"command": "exit 3", "cwd": "/nowhere"},
    }
    await ground.put(chat, "app/hello.html", b"hello")
    await ground.put(chat, ".cubicle/services.json", json.dumps({"services": services}).encode())
    assert (await ground.service.client.post(f"/api/sandboxes/{chat.id}/stop", headers=ground.key(chat))).is_success
    async with ground.client(chat, port) as client:
        await client.get("/hello.html", headers=PAGE)
        async with asyncio.timeout(60):
            while (answer := await client.get("/hello.html")).status_code == 503:
                await asyncio.sleep(0.1)
    assert answer.text == "hello"
    assert (await ground.bash(chat, "cat .cubicle/web.log")).startswith("started\n")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 60_000,
        b'{"services": []}',
        b'{"services": {"a b": {"command": "x"}}}',
        b'{"services": {"a": "x"}}',
        b'{"services": {"a": {}}}',
        b'{"services": {"a": {"command": "x\\u0000"}}}',
        b'{"services": {"a": {"command": "x\\ud800"}}}',
        b'{"services": {"a": {"command": "x", "cwd": "/home/\\udfff"}}}',
        b'{"services": {"a": {"command": "x", "cwd": "relative"}}}',
        b'{"services": {"a": {"command": 1}}}',
        json.dumps({"services": {f"n{n}": {"command": "x"} for n in range(MAX_SERVICES + 1)}}).encode(),
        b"x" * 70_000,
    ],
)
def test_a_file_that_says_nothing_of_use(content: bytes) -> None:
    with pytest.raises(BadServices):
        parse(content)


def test_a_command_is_not_read_by_the_shell_around_it() -> None:
    (service,) = parse(b'{"services": {"web": {"command": "echo \'a\'; $(b) \\"c\\""}}}')
    assert service.script.endswith("""exec bash -c 'echo '"'"'a'"'"'; $(b) "c"'""")
    assert service.cwd == "/home/assistant"


async def test_whatever_is_wrong_with_the_services_the_sandbox_stays_up(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        name = "broken"
        just_started = True

        async def read_bytes(self, *_: object, **__: object) -> bytes:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    async with StartCommands().attached(CHAT, Broken()):  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            while "the services of a chat were not started" not in caplog.text:
                await asyncio.sleep(0.01)
