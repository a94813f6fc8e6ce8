"""What people do with files over HTTP: search, save, rename, delete, changes, versions, tails and PDFs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.http_api.pages import visitor
from tests.http_api.pages.visitor import KEY, House

pytestmark = [pytest.mark.anyio]
OUTPUTS, HOME = "/mnt/user-data/outputs", "/home/assistant"
OFFICE = """#!/bin/sh
for last; do :; done
while [ "$1" != --outdir ]; do shift; done
case "$last" in *bad*) exit 1;; esac
name=$(basename "$last"); printf '%%PDF-1.4 of %s' "$name" > "$2/${name%.*}.pdf"
"""


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with visitor.house(tmp_path_factory.mktemp("house"), key=KEY) as house:
        yield house


async def found(house: House, chat: str, **query: str) -> list[dict[str, Any]]:
    answer = await house.client.get(f"/api/chats/{chat}/search", params=query)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


async def tool(house: House, chat: str, name: str, **arguments: str) -> str:
    """What the model is answered, with the notes."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": chat}
    answer = await house.client.post("/mcp", json=body, headers=headers)
    answer.raise_for_status()
    return answer.text


async def etag(house: House, chat: str, path: str) -> str:
    return str((await house.client.head(f"/files/{chat}/{path}")).headers["ETag"])


async def test_a_search_finds_names_and_contents_and_passes_over_what_is_hidden(house: House) -> None:
    await house.bash(
        "search",
        f"mkdir -p {HOME}/app/node_modules {HOME}/.cache '{OUTPUTS}/a [b]' && cd {HOME}/app && "
        "printf 'one\\nA Needle here\\nneedle \\033[31m<b>\\n' > notes.txt && echo needle > node_modules/x.js && "
        f"echo needle > {HOME}/.cache/y && printf 'needle\\0' > binary && echo needle > a.Pdf && touch '{OUTPUTS}/a [b]/Needle*?.csv'",
    )
    lines = await found(house, "search", q="needle")
    assert [(one["path"], one["root"]) for one in lines if one["type"] == "name"] == [("a [b]/Needle*?.csv", "outputs")]
    texts = [one for one in lines if one["type"] == "line"]
    assert [(one["path"], one["line"]) for one in texts] == [
        ("workspace/app/notes.txt", 2),
        ("workspace/app/notes.txt", 3),
    ]
    assert texts[1]["text"] == "needle [31m<b>", "no control character comes through"
    assert lines[-1] == {"type": "end", "complete": True}
    names = await found(house, "search", **{"q": "[B]", "in": "names"})
    assert [one["path"] for one in names if one["type"] == "name"] == ["a [b]"]
    assert [one["type"] for one in await found(house, "search", **{"q": "$(id)'\"", "in": "contents"})] == ["end"]


@pytest.mark.parametrize("query", [{"q": ""}, {"q": "x" * 201}, {"q": "a\nb"}, {"q": "x", "in": "everything"}])
async def test_a_search_for_nothing_is_refused(house: House, query: dict[str, str]) -> None:
    assert (await house.client.get("/api/chats/search/search", params=query)).status_code == 400


async def test_a_search_is_bounded_and_a_huge_line_is_cut(house: House) -> None:
    await house.bash(
        "many", f"cd {OUTPUTS} && for i in $(seq 300); do echo straw > straw-$i; done && "
        "head -c 3000000 /dev/zero | tr '\\0' a > long && printf 'straw' >> long",
    )  # fmt: skip
    lines = await found(house, "many", q="straw")
    assert sum(one["type"] == "name" for one in lines) == 200
    assert lines[-1] == {"type": "end", "complete": False}
    assert max(len(one.get("text", "")) for one in lines) <= 300


async def test_a_client_that_leaves_ends_its_search(house: House) -> None:
    program = b"#!/bin/sh\necho $$ > ~/searching\nexec sleep 600\n"
    await house.put("leave", "~/.local/bin/rg", program, "755")
    query = {"q": "nothing", "in": "contents"}
    async with house.client.stream("GET", "/api/chats/leave/search", params=query), asyncio.timeout(30):
        while "found" not in await house.bash("leave", "test -s ~/searching && echo found || true"):
            await asyncio.sleep(0.1)
    async with asyncio.timeout(9):  # sooner than the search's own limit
        while "runs" in await house.bash("leave", "kill -0 $(cat ~/searching) 2>/dev/null && echo runs || true"):
            await asyncio.sleep(0.1)


async def test_a_text_is_saved_over_the_version_that_was_opened_and_over_no_other(house: House) -> None:
    await tool(house, "save", "create_file", path=f"{OUTPUTS}/a.txt", content="one\n", description="x")
    await house.bash("save", f"chmod 755 {OUTPUTS}/a.txt")
    opened = await etag(house, "save", "a.txt")
    bare = await house.client.put("/api/files/save/a.txt", content=b"x")
    assert bare.status_code == 428
    saved = await house.client.put("/api/files/save/a.txt", content="zwei ü\n".encode(), headers={"If-Match": opened})
    assert saved.status_code == 200, saved.text
    assert saved.json()["etag"] == await etag(house, "save", "a.txt")
    assert await house.bash("save", f"stat -c %a {OUTPUTS}/a.txt && cat {OUTPUTS}/a.txt") == "755\nzwei ü\n"
    again = await house.client.put("/api/files/save/a.txt", content=b"three", headers={"If-Match": opened})
    assert again.status_code == 412
    assert again.headers["ETag"] == saved.json()["etag"]
    undone = await house.client.post(f"/api/chats/save/calls/{saved.json()['id']}/undo")
    assert undone.status_code == 200, undone.text
    assert await house.bash("save", f"cat {OUTPUTS}/a.txt") == "one\n"


async def test_of_two_who_save_at_once_one_wins_and_one_is_told(house: House) -> None:
    await house.bash("race", f"echo first > {OUTPUTS}/a.txt")
    opened = await etag(house, "race", "a.txt")
    puts = [
        house.client.put("/api/files/race/a.txt", content=f"{n}\n" * 1000, headers={"If-Match": opened})
        for n in range(4)
    ]
    answers = await asyncio.gather(*puts)
    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]
    winner = next(n for n, answer in enumerate(answers) if answer.status_code == 200)
    assert await house.bash("race", f"head -1 {OUTPUTS}/a.txt") == f"{winner}\n"


async def test_a_new_file_takes_no_other_ones_place(house: House) -> None:
    await house.bash("new", "true")
    new = {"If-None-Match": "*"}
    assert (await house.client.put("/api/files/new/sub/n.md", content=b"# n", headers=new)).status_code == 201
    assert (await house.client.put("/api/files/new/sub/n.md", content=b"# m", headers=new)).status_code == 412
    assert await house.bash("new", f"cat {OUTPUTS}/sub/n.md") == "# n"
    big = await house.client.put("/api/files/new/big", content=b"x" * (8 * 1024**2 + 1), headers=new)
    assert big.status_code == 413
    assert (await house.client.head("/files/new/big")).status_code == 404
    assert (await house.client.put("/api/files/nobody/x", content=b"", headers=new)).status_code == 404


async def test_an_upload_is_saved_and_renamed_too(house: House) -> None:
    await house.client.post("/api/uploads/up/in.csv", content=b"a,b\n")
    tag = {"If-Match": await etag(house, "up", "uploads/in.csv")}
    saved = await house.client.put("/api/files/up/uploads/in.csv", content=b"c\n", headers=tag)
    assert saved.status_code == 200, saved.text
    renamed = await house.client.post("/api/files/up/uploads/in.csv", params={"to": "uploads/out.csv"})
    assert (renamed.status_code, renamed.json()) == (200, {"path": "uploads/out.csv"})
    assert await house.bash("up", "cat /mnt/user-data/uploads/out.csv") == "c\n"


async def test_a_rename_replaces_nothing_and_leaves_its_root_never(house: House) -> None:
    await house.bash(
        "name", f"cd {OUTPUTS} && mkdir -p d/e && echo 1 > a && echo 2 > b && ln -s /etc/passwd l && ln -s /tmp out"
    )

    async def rename(path: str, to: str) -> int:
        return (await house.client.post(f"/api/files/name/{path}", params={"to": to})).status_code

    assert await rename("a", "outputs/b") == 409
    assert await rename("a", "outputs/d") == 409
    assert await rename("a", "outputs/none/x") == 404
    assert await rename("a", "workspace/a") == 409
    for bad in ("outputs/../x", "outputs/", "", "outputs/a\u202egpj", "outputs/.cubicle-tmp-x", "/etc/x"):
        assert await rename("a", bad) == 400, bad
    assert await rename("a", "outputs/out/x") == 404, "through a link that leads out"
    assert await rename("d", "outputs/d/e/f") in (400, 409)
    assert await rename("a", "outputs/d/ä b") == 200
    assert await rename("l", "outputs/m") == 200
    assert await rename("d", "outputs/deep") == 200
    left = await house.bash("name", f"cd {OUTPUTS} && cat 'deep/ä b' b && readlink m && ls")
    assert left == "1\n2\n/etc/passwd\nb\ndeep\nm\nout\n"


async def test_a_folder_goes_with_what_is_in_it_only_when_that_is_said(house: House) -> None:
    await house.bash("rm", f"cd {OUTPUTS} && mkdir -p d/e && echo 1 > d/e/f && echo 2 > g && ln -s {HOME} home")

    async def remove(path: str, **query: str) -> int:
        return (await house.client.delete(f"/api/files/rm/{path}", params=query)).status_code

    assert await remove("d") == 409
    assert await remove("outputs") == 400
    assert await remove("missing") == 404
    assert await remove("home", recursive="1") == 204
    assert await remove("g") == 204
    assert await remove("d", recursive="1") == 204
    assert await house.bash("rm", f"ls {OUTPUTS}; test -d {HOME} && echo kept") == "kept\n"


async def test_a_view_link_changes_no_file_and_may_search_follow_and_see_versions(house: House) -> None:
    await house.bash("view", f"echo straw > {OUTPUTS}/a.txt")
    made = await house.client.post("/api/links/view", params={"access": "view"})
    key = made.json()["url"].partition("?key=")[2]
    async with httpx.AsyncClient(base_url=house.url, timeout=60, trust_env=False) as looker:
        tag = (await looker.head("/files/view/a.txt", params={"key": key})).headers["ETag"]
        put = await looker.put("/api/files/view/a.txt", params={"key": key}, content=b"x", headers={"If-Match": tag})
        assert put.status_code == 403
        move = {"key": key, "to": "outputs/b.txt"}
        assert (await looker.post("/api/files/view/a.txt", params=move)).status_code == 403
        assert (await looker.delete("/api/files/view/a.txt", params={"key": key})).status_code == 403
        assert (await looker.post("/api/uploads/view/u.txt", params={"key": key}, content=b"x")).status_code == 403
        for path in ("search?q=straw", "changes", "versions/a.txt"):
            sign = "&" if "?" in path else "?"
            assert (await looker.get(f"/api/chats/view/{path}{sign}key={key}")).status_code == 200, path
    assert await house.bash("view", f"cat {OUTPUTS}/a.txt") == "straw\n"


async def test_changes_come_from_the_journal_and_from_the_disk(house: House) -> None:
    path = f"{OUTPUTS}/report.md"
    await tool(house, "changes", "create_file", path=path, content="# a\nold\n", description="x")
    await tool(house, "changes", "str_replace", path=path, old_str="old", new_str="new", description="x")
    await house.bash("changes", f"echo 1 > {OUTPUTS}/by-command.csv")
    await house.client.post("/api/uploads/changes/u.txt", content=b"u")
    tag = {"If-Match": await etag(house, "changes", "report.md")}
    await house.client.put("/api/files/changes/report.md", content=b"# mine\n", headers=tag)
    answer = (await house.client.get("/api/chats/changes/changes")).json()
    told = [(one["done"], one["by"], one["shown"]) for one in answer["changes"]]
    assert told == [
        ("changed", "person", "report.md"),
        ("uploaded", "person", "uploads/u.txt"),
        ("changed", "model", "report.md"),
        ("created", "model", "report.md"),
    ]
    assert (answer["changes"][2]["text_before"], answer["changes"][2]["text_after"]) == ("# a\nold\n", "# a\nnew\n")
    assert {"by-command.csv", "report.md"} <= {file["path"] for file in answer["files"]}
    call = answer["changes"][3]["id"]
    later = await house.client.get("/api/chats/changes/changes", params={"since": answer["changes"][0]["at"] + 1})
    assert later.json()["changes"] == []
    assert (await house.client.get("/api/chats/changes/changes?since=nan")).status_code == 400
    await house.client.post("/api/sandboxes/changes/stop")
    down = (await house.client.get("/api/chats/changes/changes")).json()
    assert (len(down["changes"]), down["files"], down["changes"][3]["id"]) == (4, None, call)


async def test_earlier_versions_of_a_file_are_listed_read_and_gone_for_other_paths(house: House) -> None:
    path = f"{OUTPUTS}/v.txt"
    for text in ("one\n", "two\n", "three\n"):
        await tool(house, "versions", "create_file", path=path, content=text, description="x")
    versions = (await house.client.get("/api/chats/versions/versions/v.txt")).json()["versions"]
    assert [(one["size"], one["by"], one["tool"]) for one in versions] == [(4, "model", "create_file")] * 2
    texts = [
        (await house.client.get("/api/chats/versions/versions/v.txt", params={"id": one["id"]})).text
        for one in versions
    ]
    assert texts == ["two\n", "one\n"]
    await house.bash("versions", f"echo x > {OUTPUTS}/other.txt")
    stolen = await house.client.get("/api/chats/versions/versions/other.txt", params={"id": versions[0]["id"]})
    assert stolen.status_code == 410
    assert (await house.client.get("/api/chats/versions/versions/other.txt")).json() == {"versions": []}
    assert (await house.client.get("/api/chats/versions/versions/v.txt?id=../../x")).status_code == 410


async def _pieces(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    async for line in lines:
        if line.startswith("data: "):
            yield json.loads(line[6:])


async def test_a_log_is_followed_through_growth_truncation_and_the_operators_stop(house: House) -> None:
    log = f"{OUTPUTS}/run.log"
    await house.bash("tail", f"for i in $(seq 100000); do echo line-$i; done > {log}")
    async with asyncio.timeout(60), house.client.stream("GET", "/api/chats/tail/tail/run.log") as answer:
        pieces = _pieces(answer.aiter_lines())
        first = await anext(pieces)
        assert first["reset"] is True
        assert first["text"].endswith("line-100000\n")
        assert first["text"].startswith("line-"), "no half line"
        assert len(first["text"]) <= 256 * 1024
        await house.bash("tail", f"echo more >> {log}")
        assert (await anext(pieces))["text"] == "more\n"
        await house.bash("tail", f"echo anew > {log}")
        cut = await anext(pieces)
        assert (cut["text"], cut["reset"]) == ("anew\n", True)
        await house.client.post("/api/sandboxes/tail/stop")
        assert (await anext(pieces))["stopped"] == "The operator stopped this sandbox."


async def test_an_office_file_becomes_a_pdf_where_the_image_can(house: House) -> None:
    await house.bash("office", f"cd {OUTPUTS} && echo x > a.docx && echo x > bad.odt && echo x > a.txt")
    assert (await house.client.get("/api/chats/office/pdf/a.docx")).status_code == 501
    await house.put("office", "~/.local/bin/soffice", OFFICE.encode(), "755")
    made = await house.client.get("/api/chats/office/pdf/a.docx")
    assert (made.status_code, made.headers["content-type"], made.content) == (
        200,
        "application/pdf",
        b"%PDF-1.4 of a.docx",
    )
    assert (await house.client.get("/api/chats/office/pdf/bad.odt")).status_code == 422
    assert (await house.client.get("/api/chats/office/pdf/a.txt")).status_code == 422


TAB = {"Accept": "text/html,*/*", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nothing/here", 404, "There is nothing at this address"),
        ("/files/page/missing.txt", 404, "There is no such file in this chat."),
        ("/mcp-info/x", 404, "There is nothing at this address"),
        ("/files/page/%3Cb%3Ex", 404, "There is nothing at this address"),
    ],
)
async def test_an_unknown_address_is_a_page_in_a_browser_and_a_problem_elsewhere(
    house: House, path: str, status: int, said: str
) -> None:
    page = await house.client.get(path, headers=TAB)
    assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert said in page.text
    assert "<b>" not in page.text
    program = await house.client.get(path)
    assert (program.status_code, program.headers["content-type"]) == (status, "application/problem+json")


async def test_to_look_for_the_browser_starts_none(house: House) -> None:
    await house.bash("still", "true")
    looked = await house.client.post("/browser/still/start?wake=0")
    assert (looked.status_code, looked.json()["type"]) == (409, "urn:cubicle:problem:not-started")
    assert (await house.client.get("/browser/still/status")).json()["running"] is False
    assert (await house.client.post("/browser/unknown/start?wake=0")).status_code == 404
    assert (await house.client.get("/browser/unknown/status")).json()["sandbox"] == "none"


async def test_ports_of_a_stopped_chat_are_still_listed_and_faults_of_services_are_told(house: House) -> None:
    chat = "ports"
    await house.bash(chat, "nohup python3 -m http.server 8123 >/dev/null 2>&1 & sleep 0.1")
    async with asyncio.timeout(30):
        while not (await house.client.get(f"/api/chats/{chat}/ports")).json()["ports"]:
            await asyncio.sleep(0.1)
    await house.bash(chat, 'mkdir -p ~/.cubicle && echo \'{"services": {"web": 3}}\' > ~/.cubicle/services.json')
    await house.client.post(f"/api/sandboxes/{chat}/stop")
    down = (await house.client.get(f"/api/chats/{chat}/ports")).json()
    assert [(one["port"], one["open"]) for one in down["ports"]] == [(8123, False)]
    await house.client.post(f"/api/chats/{chat}/start")
    async with asyncio.timeout(30):
        while not (await house.client.get(f"/api/chats/{chat}/ports")).json()["services"]:
            await asyncio.sleep(0.1)
    up = (await house.client.get(f"/api/chats/{chat}/ports")).json()
    assert (up["ports"], up["services"]) == ([], ["It cannot be used: web has to be an object."])
    told = await tool(house, chat, "bash_tool", command="echo hi", description="x")
    assert "services.json: It cannot be used: web has to be an object." in told
    assert "services.json" not in await tool(house, chat, "bash_tool", command="echo hi", description="x")
