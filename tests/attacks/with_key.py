"""Attacks of a tenant who holds a key, on the others."""

from __future__ import annotations

import asyncio
import itertools
import json
import os

from tests.attacks.attacker import Attacker, once
from tests.attacks.client import bash, call, post, request
from tests.attacks.table import attack

BUSY = "429|503"
OUTPUTS, UPLOADS = "/mnt/user-data/outputs", "/mnt/user-data/uploads"


def rpc(method: str, params: str) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' % (method.encode(), params.encode())


def tool(name: str, arguments: object, attacker: Attacker, *more: str) -> bytes:
    return call("tools/call", {"name": name, "arguments": arguments}, attacker.key, attacker.chat, *more)


@attack("413|400", "closed|429")
async def brackets(attacker: Attacker) -> None:
    """A ping of 60 MB of empty lists."""
    body = rpc("ping", '{"a":[' + "[]," * attacker.size(20_000_000) + "[]]}")
    await attacker.repeat(4, lambda: attacker.once(post(body, attacker.key, attacker.chat)))


@attack("400|413", "closed|429")
async def deep_json(attacker: Attacker) -> None:
    await attacker.repeat(10, lambda: attacker.once(post(b"[" * attacker.size(5_000_000), attacker.key, attacker.chat)))


@attack("413|400", "closed|429")
async def escaped_json(attacker: Attacker) -> None:
    """30 MB of escaped characters in the argument of a tool; in the short form just more of them than may be."""
    text = "\\u0041" * (2_100_000 if attacker.short else 5_000_000)
    params = '{"name":"bash_tool","arguments":{"description":"a","command":"' + text + '"}}'
    await attacker.repeat(4, lambda: attacker.once(post(rpc("tools/call", params), attacker.key, attacker.chat)))


@attack("200|413|429", "400|closed|no answer")
async def large_arguments(attacker: Attacker) -> None:
    """Files of 50 MB as an argument, eight at a time; half of them are not ASCII."""
    texts = ("a" * attacker.size(50_000_000), "é" * attacker.size(25_000_000))
    data = []
    for text in texts:
        arguments = {"description": "a", "path": "/tmp/large", "file_text": text}
        params = {"name": "create_file", "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, ensure_ascii=False)
        data.append(post(body.encode(), attacker.key, attacker.chat))
    turns = itertools.cycle(data)
    await attacker.repeat(8, lambda: attacker.once(next(turns)))


@attack("200|429", "closed|no answer")
async def large_commands(attacker: Attacker) -> None:
    """A command, a path, a text to find and a task of 20 MB each."""
    text = "a" * attacker.size(20_000_000)
    calls: list[tuple[str, dict[str, object]]] = [
        ("bash_tool", {"command": text}),
        ("view", {"path": f"/{text}"}),
        ("str_replace", {"path": "/tmp/a", "old_str": text, "new_str": "b"}),
        ("sub_agent", {"task": text}),
    ]
    data = [tool(name, {"description": "a", **arguments}, attacker) for name, arguments in calls]
    await attacker.flood(4, *data)


@attack("200|400|413|429")
async def many_arguments(attacker: Attacker) -> None:
    await attacker.flood(8, tool("bash_tool", {f"a{n}": n for n in range(9_000)}, attacker))


@attack("400", "413|429")
async def bad_messages(attacker: Attacker) -> None:
    await attacker.flood(
        20, *(post(body, attacker.key, attacker.chat) for body in (b"[]", b"[{}]", b"1", b'"a"', b"{"))
    )


@attack("200|429")
async def unknown_tools(attacker: Attacker) -> None:
    await attacker.flood(20, tool("a" * 10_000, {}, attacker))


@attack("200|429")
async def calls_of_one_chat(attacker: Attacker) -> None:
    """100 calls at a time in one sandbox."""
    await attacker.flood(100, bash("true", attacker.key, attacker.chat))


@attack("200|429", "503|507|no answer", prepare=lambda a: _forget_chats(a), tidy=lambda a: _forget_chats(a))
async def many_chats(attacker: Attacker) -> None:
    """A new sandbox with each call, eight at a time."""
    count = iter(range(10**9))

    async def one() -> None:
        status, _ = await attacker.ask(bash("true", attacker.key, f"storm-{next(count)}"))
        attacker.seen[status] += 1

    await attacker.repeat(8, one)


async def _forget_chats(attacker: Attacker) -> None:
    status, body = await attacker.ask(request("GET", "/api/sandboxes", [attacker.bearer]), 60)
    assert status == "200", (status, body)
    chats = [row["chat"] for row in json.loads(body)["sandboxes"] if row["chat"].startswith("storm")]
    await asyncio.gather(
        *(attacker.ask(request("DELETE", f"/api/sandboxes/{chat}?now=1", [attacker.bearer])) for chat in chats)
    )


@attack("200|429", "409|503|404|no answer", prepare=lambda a: _forget_chats(a), tidy=lambda a: _forget_chats(a))
async def starts_and_stops(attacker: Attacker) -> None:
    """Sandboxes are started and stopped as fast as it goes."""
    names = iter(f"storm-{n}" for n in range(10))

    async def one() -> None:
        name = next(names)
        while attacker.left:
            for method, path in (("POST", f"/api/chats/{name}/start"), ("POST", f"/api/sandboxes/{name}/stop")):
                status, _ = await attacker.ask(request(method, path, [attacker.bearer]))
                attacker.seen[status] += 1

    await attacker.at_once(6, one)


@attack("200|429")
async def sandbox_tables(attacker: Attacker) -> None:
    await attacker.flood(20, request("GET", "/api/sandboxes", [attacker.bearer]))


INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}


@attack("200|429")
async def many_sessions(attacker: Attacker) -> None:
    """A new MCP session with each request."""
    await attacker.flood(20, call("initialize", INITIALIZE, attacker.key, attacker.chat))


@attack("204|429|404")
async def ended_sessions(attacker: Attacker) -> None:
    count = iter(range(10**9))

    async def one() -> None:
        data = (
            request("DELETE", "/mcp", [attacker.bearer, f"X-Chat-Id: a{n}", f"Mcp-Session-Id: {n}"])
            for n in (next(count) for _ in range(200))
        )
        await attacker.flood(1, *data)

    await attacker.at_once(20, one)


@attack("202|429")
async def cancel_storm(attacker: Attacker) -> None:
    """Cancellations of requests that there are none of."""
    body = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
    await attacker.flood(40, post(body, attacker.key, attacker.chat))


@attack("closed|200|429")
async def calls_given_up(attacker: Attacker) -> None:
    """Calls whose client hangs up at once."""

    async def one() -> None:
        connection = await attacker.connect()
        await connection.send(bash("sleep 5", attacker.key, attacker.chat))
        await asyncio.sleep(0.02)
        connection.close()
        attacker.seen["closed"] += 1

    await attacker.repeat(10, one)


@attack("200|429")
async def tool_lists(attacker: Attacker) -> None:
    await attacker.flood(40, call("tools/list", {}, attacker.key, attacker.chat))


@attack("200|429|no answer")
async def strange_cursors(attacker: Attacker) -> None:
    """The guest of its own sandbox may still be busy with the calls that it gave up before."""
    await attacker.flood(20, call("resources/list", {"cursor": "a" * 100_000}, attacker.key, attacker.chat))


@attack("200|429|no answer", prepare=lambda a: _many_uploads(a))
async def resource_lists(attacker: Attacker) -> None:
    """A list of 10,000 uploads, again and again."""
    await attacker.flood(8, call("resources/list", {}, attacker.key, attacker.chat))


@attack("200|429|no answer", prepare=lambda a: _many_uploads(a))
async def upload_lists(attacker: Attacker) -> None:
    """The same with checksums: the attacker waits for its own share, and gives up."""
    await attacker.flood(8, request("GET", f"/api/uploads/{attacker.chat}", [attacker.bearer]))


@once
async def _many_uploads(attacker: Attacker) -> None:
    """10,000 files that were uploaded: made by hand, for by requests it takes a minute."""
    await _fill(attacker, os.environ["CUBICLE_TEST_UPLOADS"])


async def _fill(attacker: Attacker, folder: str) -> None:
    """The folder is the service's, so a file of it tells where it is."""
    data = request("PUT", f"/api/uploads/{attacker.chat}/many/marker", [attacker.bearer], b"a")
    assert (await attacker.ask(data, 60))[0] == "201"

    def make() -> None:
        for root, _, files in os.walk(folder):
            if root.endswith("uploads/many") and "marker" in files:
                for number in range(attacker.size(10_000)):
                    with open(f"{root}/{'a' * 100}{number}.txt", "w"):
                        pass

    await asyncio.to_thread(make)


@attack("200|404|429", "no answer|closed", prepare=lambda a: _many_files(a))
async def large_listings(attacker: Attacker) -> None:
    """Listings of 10,000 entries, eight at a time."""
    await attacker.flood(8, request("GET", f"/files/{attacker.chat}/outputs/many/", [attacker.bearer]))


@attack("200|429", "no answer|closed", prepare=lambda a: _many_files(a))
async def archives(attacker: Attacker) -> None:
    """Zips of 10,000 files, eight at a time, each read."""
    await attacker.flood(8, request("GET", f"/files/{attacker.chat}/archive", [attacker.bearer]))


@attack("200|429", "closed", prepare=lambda a: _many_files(a))
async def archives_never_read(attacker: Attacker) -> None:
    await attacker.hold(50, request("GET", f"/files/{attacker.chat}/archive", [attacker.bearer]))
    attacker.seen["200"] += attacker.seen.pop("waiting", 0)


@attack("200|429", prepare=lambda a: _many_files(a))
async def folder_views(attacker: Attacker) -> None:
    await attacker.flood(8, tool("view", {"description": "a", "path": f"{OUTPUTS}/many"}, attacker))


@once
async def _many_files(attacker: Attacker) -> None:
    await attacker.bash(
        f"mkdir -p {OUTPUTS}/many && cd {OUTPUTS}/many && touch $(seq -f 'a{'b' * 100}%g' {attacker.size(10_000)})"
    )


@attack("200|429", prepare=lambda a: _picture(a))
async def thumbnails(attacker: Attacker) -> None:
    """A picture of 6,000 by 6,000 points, made small again and again."""
    await attacker.flood(8, tool("view", {"description": "a", "path": "/tmp/large.bmp.png"}, attacker))


@once
async def _picture(attacker: Attacker) -> None:
    code = (
        "import zlib,struct\n"
        "def part(k,d): return struct.pack('>I',len(d))+k+d+struct.pack('>I',zlib.crc32(k+d))\n"
        "rows=zlib.compress(bytes(6001*6000))\n"
        "head=struct.pack('>IIBBBBB',6000,6000,8,0,0,0,0)\n"
        "open('/tmp/large.bmp.png','wb').write(b'\\x89PNG\\r\\n\\x1a\\n'+part(b'IHDR',head)+part(b'IDAT',rows)+part(b'IEND',b''))\n"
    )
    await attacker.bash(f"python3 - <<'EOF'\n{code}EOF")


@attack("200|429", prepare=lambda a: _one_line(a))
async def view_of_one_line(attacker: Attacker) -> None:
    """A text of 50 MB without a line end."""
    await attacker.flood(8, tool("view", {"description": "a", "path": "/tmp/line.txt"}, attacker))


@attack("200|429", prepare=lambda a: _one_line(a))
async def edits_of_a_large_file(attacker: Attacker) -> None:
    edit = {"description": "a", "path": "/tmp/line.txt", "old_str": "a" * 5_000 + "b", "new_str": "c"}
    await attacker.flood(4, tool("str_replace", edit, attacker))


@once
async def _one_line(attacker: Attacker) -> None:
    await attacker.bash(f"head -c {attacker.size(50_000_000)} /dev/zero | tr '\\0' a >/tmp/line.txt")


@attack("200|429")
async def output_flood(attacker: Attacker) -> None:
    """Commands that print all they can, followed by progress."""
    seconds = attacker.seconds / 2  # less than it waits for the answer
    arguments = {"command": f"timeout {seconds} yes", "description": "a"}
    params = {"name": "bash_tool", "arguments": arguments, "_meta": {"progressToken": 1}}
    await attacker.flood(4, call("tools/call", params, attacker.key, attacker.chat))


@attack("200|429", "waiting|closed")
async def output_never_read(attacker: Attacker) -> None:
    arguments = {"command": f"timeout {attacker.seconds} yes", "description": "a"}
    params = {"name": "bash_tool", "arguments": arguments, "_meta": {"progressToken": 1}}
    await attacker.hold(10, call("tools/call", params, attacker.key, attacker.chat))
    attacker.seen["200"] += attacker.seen.pop("waiting", 0)


@attack("200|429")
async def long_commands(attacker: Attacker) -> None:
    """A command that is hard to judge: 900 KB of brackets and quotes."""
    await attacker.flood(4, bash("false; " + "((" * 200_000 + "'\"" * 100_000, attacker.key, attacker.chat))


@attack("waiting|closed|429|503")
async def stalled_uploads(attacker: Attacker) -> None:
    """200 uploads that send a byte and stop."""
    head = request("PUT", f"/api/uploads/{attacker.chat}/stalled", [attacker.bearer, "Content-Length: 5000000"])
    await attacker.hold(200, head.replace(b"Content-Length: 0\r\n", b"") + b"a")


@attack("201|429", "503|507|409|no answer|closed")
async def many_uploads(attacker: Attacker) -> None:
    count = iter(range(10**9))

    async def one() -> None:
        path = f"/api/uploads/{attacker.chat}/small/{next(count) % 100}"
        attacker.seen[(await attacker.ask(request("PUT", path, [attacker.bearer], b"a" * 1000)))[0]] += 1

    await attacker.repeat(40, one)


@attack("201|429", "503|507|409|no answer|closed")
async def large_uploads(attacker: Attacker) -> None:
    """100 MB each, four at a time."""
    data = request("PUT", f"/api/uploads/{attacker.chat}/large", [attacker.bearer], bytes(attacker.size(100_000_000)))
    await attacker.repeat(4, lambda: attacker.once(data))


@attack("400|413|201|429", "closed|no answer")
async def endless_form(attacker: Attacker) -> None:
    """Headers of a part of a form, without end."""
    head = ["Content-Type: multipart/form-data; boundary=b", attacker.bearer]
    body = b"--b\r\n" + b"X-A: b\r\n" * attacker.size(2_000_000)
    await attacker.repeat(8, lambda: attacker.once(request("POST", f"/api/uploads/{attacker.chat}/f", head, body)))


@attack("400|413|201|429", "closed|no answer")
async def form_of_many_parts(attacker: Attacker) -> None:
    head = ["Content-Type: multipart/form-data; boundary=b", attacker.bearer]
    body = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * attacker.size(200_000)
    await attacker.repeat(8, lambda: attacker.once(request("POST", f"/api/uploads/{attacker.chat}/f", head, body)))


@attack("200|429", "-32003|waiting|closed")
async def subscriptions(attacker: Attacker) -> None:
    """400 streams that wait for changes, and uploads that make them."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "a", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"notifications": {"resourcesListChanged": True}, "_meta": meta}
    headers = ("MCP-Protocol-Version: 2026-07-28", "Mcp-Method: subscriptions/listen")
    listening = [
        asyncio.ensure_future(
            attacker.hold(25, call("subscriptions/listen", params, attacker.key, f"{attacker.chat}-{n}", *headers))
        )
        for n in range(16)
    ]
    count = iter(range(10**9))

    async def one() -> None:
        path = f"/api/uploads/{attacker.chat}/news/{next(count) % 100}"
        attacker.seen[(await attacker.ask(request("PUT", path, [attacker.bearer], b"a")))[0]] += 1

    await attacker.repeat(4, one)
    await asyncio.gather(*listening)
    attacker.seen["200"] += attacker.seen.pop("waiting", 0) + attacker.seen.pop("201", 0)


@attack("200|400|401|429", "431")
async def prompts(attacker: Attacker) -> None:
    """The system prompt of chats and people with names of 4 KB."""
    data = request("GET", "/system-prompt?chat_id=" + "a" * 200, [attacker.bearer, "X-User-Email: " + "a@" * 2_000])
    await attacker.flood(20, data)


@attack("200|404|400|429")
async def unknown_chats(attacker: Attacker) -> None:
    """Files of chats that there are none of, each another one."""
    count = iter(range(10**9))

    async def one() -> None:
        data = (request("GET", f"/files/none-{next(count)}/", [attacker.bearer]) for _ in range(100))
        await attacker.flood(1, *data)

    await attacker.at_once(20, one)


@attack("400|429|200")
async def bad_chat_ids(attacker: Attacker) -> None:
    data = (call("ping", {}, attacker.key, chat) for chat in ("../a", "a" * 5_000, "%00", "a b", "\u00e9" * 100))
    await attacker.flood(20, *data)


@attack("200|429", prepare=lambda a: _resource(a))
async def large_resources(attacker: Attacker) -> None:
    """A resource of 15 MB, read six at a time."""
    params = {"uri": f"file://uploads/{attacker.chat}/resource"}
    await attacker.flood(6, call("resources/read", params, attacker.key, attacker.chat))


@once
async def _resource(attacker: Attacker) -> None:
    path = f"/api/uploads/{attacker.chat}/resource"
    assert (await attacker.ask(request("PUT", path, [attacker.bearer], os.urandom(15_000_000)), 60))[0] == "201"


@attack("404|503|200|429|409")
async def browser_starts(attacker: Attacker) -> None:
    """Terminals and browsers are asked for where the image has none."""
    data = [
        request("POST", f"/terminal/{attacker.chat}/start-ttyd", [attacker.bearer]),
        request("POST", f"/browser/{attacker.chat}/start", [attacker.bearer]),
        request("GET", f"/terminal/{attacker.chat}/status", [attacker.bearer]),
    ]
    await attacker.flood(8, *data)
