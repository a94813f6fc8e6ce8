"""A link to the replay or to one file of a chat opens that, and no other route of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from cubicle.core import close_codes
from cubicle.http_api.routes import ROWS, WEBSOCKET
from tests.http_api.pages.visitor import KEY, House, house

CHAT = "shared"
FILE = "outputs/a.txt"
OPEN = {
    "replay": {"/replay/{chat}/", "/api/chats/{chat}/timeline", "/api/chats/{chat}/frames/newest",
               "/api/chats/{chat}/frames/{frame}"},
    "file": {"/preview/{chat}/{path}", "/files/{chat}/{path}", "/api/chats/{chat}/pdf/{path}"},
}  # fmt: skip
PLACES = {
    "path": FILE, "port": "3000", "frame": "x", "page": "x", "pid": "1", "session": "x", "link": "x", "call": "x",
    "picture": "0" * 64,
}  # fmt: skip


@pytest.fixture(scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with house(tmp_path_factory.mktemp("locked"), key=KEY) as running:
        await running.put(CHAT, f"/mnt/user-data/{FILE}", b"hello")
        await running.put(CHAT, "/mnt/user-data/outputs/b.txt", b"not shared")
        yield running


async def made(locked: House, **asked: str) -> str:
    answer = await locked.client.post(f"/api/links/{CHAT}", params={"hours": "1", **asked})
    assert answer.status_code == 201, answer.text
    row = answer.json()
    assert (row["opens"], row["path"]) == (asked["opens"], asked.get("path", ""))
    return str(row["url"].partition("?key=")[2])


@pytest.fixture(params=["replay", "file"])
async def key(locked: House, request: pytest.FixtureRequest) -> tuple[str, str]:
    more = {"path": FILE} if request.param == "file" else {}
    return request.param, await made(locked, opens=request.param, access="view", **more)


async def test_it_opens_its_part_and_nothing_else(locked: House, key: tuple[str, str]) -> None:
    opens, sent = key
    async with httpx.AsyncClient(base_url=locked.url, trust_env=False) as visitor:
        for row in ROWS:
            if row.methods == WEBSOCKET or "{chat}" not in row.path or row.mount:
                continue
            path = placed(row.template)
            for method in row.methods.split():
                answer = await visitor.request(method, path, params={"key": sent})
                if row.template in OPEN[opens]:
                    assert answer.status_code in (200, 404, 422, 501), (method, path, answer.text)
                else:
                    assert answer.status_code in (401, 403, 308), (method, path, answer.status_code)


def placed(template: str) -> str:
    path = template.replace("{chat}", CHAT)
    for name, value in PLACES.items():
        path = path.replace(f"{{{name}}}", value)
    assert "{" not in path
    return path


async def test_it_opens_no_websocket(locked: House, key: tuple[str, str]) -> None:
    sockets = [row for row in ROWS if row.methods == WEBSOCKET and "{chat}" in row.path]
    assert len(sockets) >= 4
    base = locked.url.replace("http", "ws", 1)
    for row in sockets:
        with pytest.raises((ConnectionClosed, InvalidHandshake)) as refused:
            async with connect(
                f"{base}{placed(row.template)}?key={key[1]}", proxy=None, subprotocols=[Subprotocol("tty")]
            ) as socket:
                await socket.recv()
        if isinstance(refused.value, ConnectionClosed):
            assert refused.value.rcvd is not None
            assert refused.value.rcvd.code in (close_codes.VIEW_ONLY, close_codes.NOT_ALLOWED), row.template


async def test_it_opens_no_other_chat_and_no_page_of_the_service(locked: House, key: tuple[str, str]) -> None:
    await locked.put("another", f"/mnt/user-data/{FILE}", b"of another chat")
    async with httpx.AsyncClient(base_url=locked.url, trust_env=False) as visitor:
        for path in (f"/files/another/{FILE}", f"/preview/another/{FILE}", f"/api/chats/another/pdf/{FILE}",
                     "/replay/another/", "/api/chats/another/timeline", "/api/sandboxes", "/admin", "/api/home",
                     "/api/links"):  # fmt: skip
            answer = await visitor.get(path, params={"key": key[1]})
            assert answer.status_code in (401, 403, 404), (path, answer.status_code)
            assert "of another chat" not in answer.text
        assert (await visitor.post("/login", data={"key": key[1]})).status_code == 401
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for headers in ({}, {"Authorization": f"Bearer {key[1]}"}):
            answer = await visitor.post("/mcp", params={"key": key[1]}, json=call, headers=headers)
            assert answer.status_code == 401
        assert not visitor.cookies


async def test_a_link_to_a_file_opens_no_other_file(locked: House) -> None:
    sent = {"key": await made(locked, opens="file", path=FILE, access="view")}
    async with httpx.AsyncClient(base_url=locked.url, trust_env=False) as visitor:
        assert (await visitor.get(f"/files/{CHAT}/{FILE}", params=sent)).text == "hello"
        for path in ("outputs/b.txt", "outputs/", "outputs", "", "outputs/%2e%2e/outputs/a.txt", "a.txt", f"{FILE}/",
                     "outputs%2fb.txt", "archive"):  # fmt: skip
            answer = await visitor.get(f"/files/{CHAT}/{path}", params=sent)
            assert answer.status_code in (400, 403, 404), (path, answer.status_code)
            assert "not shared" not in answer.text
        assert '"raw": ""' in (await visitor.get(f"/preview/{CHAT}/{FILE}", params=sent)).text.replace("&quot;", '"')
        assert not visitor.cookies


async def test_a_revoked_one_opens_nothing_any_more(locked: House) -> None:
    sent = {"key": await made(locked, opens="replay", access="view", label="gone")}
    listed = (await locked.client.get(f"/api/links/{CHAT}")).json()["links"]
    (id,) = [link["id"] for link in listed if link["label"] == "gone"]
    async with httpx.AsyncClient(base_url=locked.url, trust_env=False) as visitor:
        assert (await visitor.get(f"/api/chats/{CHAT}/timeline", params=sent)).status_code == 200
        assert (await locked.client.delete(f"/api/links/{CHAT}/{id}")).status_code == 204
        assert (await visitor.get(f"/api/chats/{CHAT}/timeline", params=sent)).status_code == 401


async def test_in_a_tab_what_it_does_not_open_says_so_in_a_page(locked: House) -> None:
    sent = {"key": await made(locked, opens="replay", access="view")}
    page = {"Accept": "text/html,*/*", "Sec-Fetch-Dest": "document"}
    async with httpx.AsyncClient(base_url=locked.url, trust_env=False) as visitor:
        answer = await visitor.get(f"/preview/{CHAT}/", params=sent, headers=page)
        assert answer.status_code == 403
        assert answer.headers["content-type"].startswith("text/html")
        assert "This link opens one file or the replay" in answer.text
        program = await visitor.get(f"/preview/{CHAT}/", params=sent)
        assert program.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "asked",
    [{"opens": "file"}, {"opens": "all"}, {"opens": "replay", "access": "control"}, {"opens": "file", "path": "../x"}],
)
async def test_a_part_that_there_cannot_be_is_refused(locked: House, asked: dict[str, str]) -> None:
    assert (await locked.client.post(f"/api/links/{CHAT}", params=asked)).status_code == 400


async def test_the_time_line_comes_in_parts_and_wakes_nothing(locked: House) -> None:
    first = (await locked.client.get(f"/api/chats/{CHAT}/timeline")).json()
    kinds = [entry["kind"] for entry in first["entries"]]
    assert {"call", "end"} <= set(kinds)
    assert first["frames"] == []
    assert not first["more"]
    after = (await locked.client.get(f"/api/chats/{CHAT}/timeline", params={"after": first["next"]})).json()
    assert after["entries"] == []
    assert after["next"] == first["next"]
    nobody = (await locked.client.get("/api/chats/nobody/timeline")).json()
    assert nobody == {"entries": [], "next": 0, "more": False, "frames": []}
    assert (await locked.client.get("/api/chats/x/timeline", params={"after": "-1"})).status_code == 400
    names = [row["chat"] for row in (await locked.client.get("/api/sandboxes")).json()["sandboxes"]]
    assert not {"nobody", "x"} & set(names)


async def test_a_card_may_stand_in_any_page_and_others_may_not(locked: House) -> None:
    read = {
        "jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": f"cubicle://card/{CHAT}"},
    }  # fmt: skip
    headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": CHAT}
    answer = await locked.client.post("/mcp", json=read, headers=headers)
    text = answer.text
    assert f"/{CHAT}" in text
    key = text.partition('\\"key\\": \\"')[2].partition("\\")[0]
    assert key
    async with httpx.AsyncClient(base_url=locked.url, trust_env=False) as visitor:
        card = await visitor.get(f"/browser/{CHAT}/", params={"key": key})
        assert card.status_code == 200
        assert "frame-ancestors *" in card.headers["content-security-policy"]
        assert "script-src 'self';" in card.headers["content-security-policy"]
        assert not visitor.cookies
        assert (await visitor.delete(f"/api/uploads/{CHAT}/x", params={"key": key})).status_code == 403
        assert (await visitor.get("/browser/other/", params={"key": key})).status_code == 401
        assert (await visitor.get(f"/api/links/{CHAT}", params={"key": key})).status_code == 401
    own = await locked.client.get(f"/browser/{CHAT}/")
    assert "frame-ancestors 'self'" in own.headers["content-security-policy"]
    viewer = await locked.client.get("/static/viewer?card=1")
    assert "frame-ancestors *" in viewer.headers["content-security-policy"]
    assert viewer.headers["content-security-policy"].startswith("sandbox allow-scripts;")


@pytest.mark.parametrize("route", [f"/api/links/{CHAT}", f"/api/chats/{CHAT}/ports/3000/share"])
async def test_values_in_a_body_are_not_passed_over(locked: House, route: str) -> None:
    """Who meant an hour would get a week."""

    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"hours": 1}'

    before = (await locked.client.get(f"/api/links/{CHAT}")).json()
    for sent in ({"json": {"hours": 1}}, {"data": {"hours": "1"}}, {"content": b"{bad"}, {"content": chunks()}):
        answer = await locked.client.post(route, **sent)  # type: ignore[arg-type]
        assert answer.status_code == 400
        assert "from the query" in answer.json()["detail"]
    assert (await locked.client.get(f"/api/links/{CHAT}")).json() == before
    assert (await locked.client.post(route, json={})).status_code != 400
