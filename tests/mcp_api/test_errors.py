"""Who is let in and what is turned away, and in which order."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest

from cubicle import log
from tests.support.service import ACCEPT, MODERN, Options, Service, messages, modern_meta, service_of, text

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
KEY = "open-sesame-123"
LIST = {"jsonrpc": "2.0", "id": 1, "method": "resources/list", "params": {"_meta": modern_meta()}}
MODERN_LIST = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "resources/list"}
BEARER = {"Authorization": f"Bearer {KEY}"}


def assert_problem(response: object, status: int) -> None:
    assert response.status_code == status  # type: ignore[attr-defined]
    assert response.headers["content-type"] == "application/json"  # type: ignore[attr-defined]
    body = response.json()  # type: ignore[attr-defined]
    problem = {name: body.pop(name) for name in ("type", "title", "status", "detail")}
    assert problem["status"] == status
    error = body["error"]
    assert body == {"jsonrpc": "2.0", "id": None, "error": error}
    assert (error["message"], error["data"]) == (problem["detail"], problem)
    assert error["code"] == (-32603 if status >= 500 else -32600)


@pytest.mark.parametrize("sent", [None, "Bearer wrong", "Bearer", "Basic b3Blbg==", f"bearer{KEY}", KEY])
async def test_a_missing_or_wrong_key_is_refused(service: Service, sent: str | None) -> None:
    async with service_of(service.fleet, Options({"mcp_api_key": KEY})) as locked:
        headers = {} if sent is None else {"Authorization": sent}
        for path in ("/mcp", "/mcp/computer_use"):
            response = await locked.post(PING, headers=headers, path=path)
            assert_problem(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"


async def test_the_right_key_is_let_in_whatever_the_case_of_its_scheme(service: Service) -> None:
    async with service_of(service.fleet, Options({"mcp_api_key": KEY})) as locked:
        for sent in (f"Bearer {KEY}", f"bearer  {KEY}", f"BEARER {KEY}"):
            assert (await locked.post(PING, headers={"Authorization": sent})).status_code == 200


async def test_without_a_key_nobody_is_asked(service: Service) -> None:
    assert (await service.post(PING, headers={"Authorization": "Bearer whatever"})).status_code == 200


async def test_refusals_come_in_their_order(service: Service) -> None:
    options = Options({"mcp_api_key": KEY, "single_user_mode": "false"})
    async with service_of(service.fleet, options) as strict:
        everything_wrong = {"Accept": "text/html", "Content-Type": "text/plain"}
        assert_problem(await strict.post(b"{", chat=None, headers=everything_wrong), 401)
        assert_problem(await strict.post(b"{", chat=None, headers=everything_wrong | BEARER), 400)
        assert_problem(await strict.post(b"{", headers=everything_wrong | BEARER), 415)
        response = await strict.post(b"{", headers={"Content-Type": "text/plain"} | BEARER)
        assert_problem(response, 415)
        assert "Content-Type" in response.json()["detail"]
        response = await strict.post(b"{", headers=BEARER)
        assert (response.json()["error"]["code"], response.json()["status"]) == (-32700, 400)


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/json, text/event-stream", 200),
        ("text/event-stream,application/json", 200),
        ("Text/Event-Stream; q=0.5, APPLICATION/JSON;q=1", 200),
        ("application/json", 415),
        ("text/event-stream", 415),
        ("*/*", 415),
        ("application/*, text/*", 415),
        ("application/json, */*", 415),
        ("application/json, text/event-stream;q=0", 415),
        ("", 415),
    ],
)
async def test_both_types_must_be_named_in_accept(service: Service, accept: str, status: int) -> None:
    assert (await service.post(PING, headers={"Accept": accept})).status_code == status


@pytest.mark.parametrize(
    ("mode", "chat", "status", "folder_is_shared"),
    [
        ("unset", "iso", 200, False),
        ("unset", None, 200, True),
        ("true", "iso", 200, True),
        ("true", None, 200, True),
        ("false", "iso", 200, False),
        ("false", None, 400, False),
    ],
)
async def test_the_rows_of_the_isolation_table(
    service: Service, mode: str, chat: str | None, status: int, folder_is_shared: bool
) -> None:
    await service.bash("echo shared > mark", chat="default")
    await service.bash("echo own > mark", chat="iso")
    async with service_of(service.fleet, Options({"single_user_mode": mode})) as other:
        response = await other.post(PING, chat=chat)
        assert response.status_code == status
        if status == 200:
            result = await other.call("bash_tool", {"command": "cat mark", "description": "x"}, chat=chat)
            assert text(result) == ("shared\n" if folder_is_shared else "own\n")
            warned = mode == "unset" and chat is None
            assert len(result["content"]) == (2 if warned else 1)
            assert not warned or "X-Chat-Id" in result["content"][1]["text"]
        else:
            assert_problem(response, 400)


async def test_the_warning_is_on_every_tools_answer_failed_ones_too(service: Service) -> None:
    for tool, arguments in (
        ("bash_tool", {"command": "false", "description": "x"}),
        ("view", {"path": "/tmp"}),
        ("create_file", {"path": "/tmp/x", "content": "x"}),
        ("str_replace", {"path": "/tmp/none", "old_str": "a", "new_str": "b"}),
        ("sub_agent", {}),
    ):
        result = await service.call(tool, arguments, chat=None)
        assert "X-Chat-Id" in result["content"][-1]["text"]


@pytest.mark.parametrize("header", ["X-OpenWebUI-Chat-Id", "X-LibreChat-Conversation-Id", "X-Conversation-Id"])
async def test_front_ends_own_headers_name_the_chat(service: Service, header: str) -> None:
    await service.bash("echo mine > owner", chat="front")
    headers = {header: "front", "X-Chat-Id": "{{CHAT_ID}}"}
    assert await service.bash("cat owner", chat=None, headers=headers) == "mine\n"


@pytest.mark.parametrize("chat", [".hidden", "a/b", "a b", "x" * 129, "ä", "a\\b", "../x"])
async def test_what_is_no_chat_id_is_refused(service: Service, chat: str) -> None:
    headers = {b"X-Chat-Id": chat.encode("latin-1"), b"Accept": ACCEPT.encode(), b"Content-Type": b"application/json"}
    assert_problem(await service.client.post("/mcp", json=PING, headers=headers), 400)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b'"ping"', -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
    ],
)
async def test_what_is_no_message_is_refused(service: Service, body: bytes, code: int) -> None:
    for headers in ({}, {"MCP-Protocol-Version": "2026-07-28"}):
        response = await service.post(body, headers=headers)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == code
        assert response.json()["id"] is None


async def test_bad_parameters_of_a_method_are_an_error_of_the_protocol(service: Service) -> None:
    answer = await service.ask("tools/call", {"name": 7})
    assert answer["error"]["code"] == -32602


async def test_an_unknown_version_is_refused_with_the_versions_there_are(service: Service) -> None:
    meta = modern_meta() | {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}
    body = PING | {"params": {"_meta": meta}}
    headers = {"MCP-Protocol-Version": "2031-01-01", "Mcp-Method": "ping"}
    response = await service.post(body, headers=headers)
    assert response.status_code == 400
    assert "2026-07-28" in response.text


async def test_a_declared_body_over_the_limit_is_refused_unread(service: Service) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: {ACCEPT}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}X-Chat-Id: a\r\nContent-Length: {64 * 1024**2 + 1}\r\n\r\n".encode())
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 60)
    writer.close()


async def test_a_streamed_body_over_the_limit_is_refused(service: Service) -> None:
    async def pieces() -> object:
        for _ in range(65):
            yield b" " * 1024**2

    headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": "a"}
    response = await service.client.post("/mcp", content=pieces(), headers=headers)  # type: ignore[arg-type]
    assert_problem(response, 413)


async def test_a_large_body_within_the_limit_is_taken(service: Service) -> None:
    content = "x" * (20 * 1024**2)
    result = await service.call("create_file", {"path": "/tmp/large", "content": content})
    assert text(result) == "Created /tmp/large (20,971,520 bytes)."
    await service.bash("rm /tmp/large")


async def test_a_key_of_one_tenant_does_not_open_the_chats_of_another(service: Service) -> None:
    keys = json.dumps({"key-of-a-123": "a", "key-of-b-123": "b"})
    async with service_of(service.fleet, Options(keys=keys)) as shared:
        a, b = ({"Authorization": f"Bearer key-of-{t}-123"} for t in "ab")
        await shared.bash("echo from a > note", chat="same", headers=a)
        assert await shared.bash("ls", chat="same", headers=b) == "(no output)"
        assert await shared.bash("cat note", chat="same", headers=a) == "from a\n"
        assert_problem(await shared.post(PING), 401)


async def test_one_tenant_cannot_end_the_mcp_session_of_another(service: Service) -> None:
    keys = json.dumps({"key-of-a-123": "a", "key-of-b-123": "b"})
    async with service_of(service.fleet, Options(keys=keys)) as shared:
        a, b = ({"Authorization": f"Bearer key-of-{t}-123", "Mcp-Session-Id": "s1"} for t in "ab")
        assert (await shared.client.delete("/mcp", headers=a)).status_code == 204
        assert (await shared.post(PING, headers=b)).status_code == 200


async def test_an_unknown_host_is_refused_when_hosts_are_named(service: Service) -> None:
    async with service_of(service.fleet, Options({"allowed_hosts": "127.0.0.1,box.example"})) as guarded:
        assert (await guarded.post(PING)).status_code == 200
        assert (await guarded.post(PING, headers={"Host": "box.example:81"})).status_code == 200
        assert_problem(await guarded.post(PING, headers={"Host": "evil.example"}), 403)
        assert_problem(await guarded.post(PING, headers={"Origin": "https://evil.example"}), 403)


async def test_without_a_key_a_loopback_service_answers_to_this_machine_alone(service: Service) -> None:
    """A page of a stranger whose name was made to point to 127.0.0.1 sends that name as its Host."""
    for host in ("localhost", "[::1]:8081", "host.docker.internal:8081"):
        assert (await service.post(PING, headers={"Host": host})).status_code == 200
    assert_problem(await service.post(PING, headers={"Host": "evil.example"}), 403)
    assert_problem(await service.post(PING, headers={"Origin": "http://evil.example"}), 403)
    wide = Options({"host": "0.0.0.0"}), Options({"mcp_api_key": "a-good-key"})
    for options in wide:
        async with service_of(service.fleet, options) as other:
            headers = {"Host": "box.example", "Authorization": "Bearer a-good-key"}
            assert (await other.post(PING, headers=headers)).status_code == 200


async def test_a_failure_of_the_service_shows_nothing_of_its_inside(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cubicle.files.uploads import Uploads

    async def broken(*_: object) -> None:
        raise RuntimeError("secret /var/lib/cubicle/data")

    monkeypatch.setattr(Uploads, "list", broken)
    for headers in ({}, MODERN_LIST):
        response = await service.post(LIST, headers=headers)
        assert_problem(response, 500)
        assert "secret" not in response.text


async def test_a_failure_outside_of_the_protocol_is_a_500_without_a_word_of_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cubicle.mcp_api import request_check

    async def broken(*_: object) -> None:
        raise RuntimeError("secret /var/lib/cubicle/data")

    monkeypatch.setattr(request_check, "answer", broken)
    response = await service.post(PING)
    assert_problem(response, 500)
    assert "secret" not in response.text


async def test_every_answer_carries_a_request_id(service: Service) -> None:
    first = (await service.post(PING)).headers["x-request-id"]
    assert len(first) == 32
    assert (await service.post(PING)).headers["x-request-id"] != first
    assert (await service.post(PING, headers={"X-Request-Id": "mine-1"})).headers["x-request-id"] == "mine-1"
    assert (await service.post(PING, headers={"X-Request-Id": "no good"})).headers["x-request-id"] != "no good"
    assert messages(await service.post(PING))[0]["result"] == {}


async def test_every_line_of_the_log_has_the_chat_the_request_the_tenant_and_the_user(service: Service) -> None:
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    try:
        log.configure("json", stream)
        response = await service.post(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "bash_tool", "arguments": {"command": "true", "description": "test"}},
            },
            chat="logged",
            headers={"X-User-Email": "ann@example.org"},
        )
        async with asyncio.timeout(60):  # the last line is written once the answer is sent
            while '"event": "request"' not in stream.getvalue():
                await asyncio.sleep(0.01)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    mine = [event for event in events if event.get("request") == response.headers["x-request-id"]]
    assert [event["event"] for event in mine] == ["sandbox up", "request"]
    assert {(event["chat"], event["tenant"], event["user"]) for event in mine} == {
        ("logged", "main", "ann@example.org")
    }
    assert (mine[-1]["status"], mine[-1]["tool"], mine[-1]["error"]) == (200, "bash_tool", False)


@pytest.mark.parametrize(
    "body", [b"[]," * 300_000, b'{"a":' * 300_000, b'"",' * 300_000], ids=["brackets", "deep", "strings"]
)
async def test_a_body_of_mere_structure_is_refused_before_it_is_built(service: Service, body: bytes) -> None:
    response = await service.post(body)
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


async def test_only_a_tool_call_may_be_large(service: Service) -> None:
    params = {
        "name": "bash_tool",
        "arguments": {"command": "wc -c <<'E'\n" + "x" * 2_000_000 + "\nE", "description": "size"},
    }
    assert (
        await service.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    ).status_code == 200
    padded = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"padding": "x" * 2_000_000}}
    assert (await service.post(padded)).status_code == 413
