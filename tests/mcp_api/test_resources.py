"""A chat's uploads as MCP resources."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from cubicle.core.chat import Chat
from tests.support.service import Service

FOLDER = "/mnt/user-data/uploads"


async def put(service: Service, path: str, content: bytes, chat: str = "files") -> None:
    async with service.fleet.lease(Chat(chat)) as machine:
        await machine.write(f"{FOLDER}/{path}", content, as_root=True)


async def read(service: Service, uri: str, **options: Any) -> dict[str, Any]:
    return await service.ask("resources/read", {"uri": uri}, **options)


async def test_a_chat_without_a_sandbox_has_no_resources_and_gets_no_sandbox(service: Service) -> None:
    assert (await service.ask("resources/list", chat="never"))["result"]["resources"] == []
    assert not service.fleet.has(Chat("never"))


async def test_uploads_are_listed_with_uri_name_and_type(service: Service) -> None:
    await put(service, "a b.txt", b"hello", chat="listed")
    await put(service, "deep/er/ü.png", b"\x89PNG", chat="listed")
    for answer in (
        await service.ask("resources/list", chat="listed"),
        await service.ask_modern("resources/list", chat="listed"),
    ):
        listed = {r["uri"]: (r["name"], r["mimeType"]) for r in answer["result"]["resources"]}
        assert listed == {
            "file://uploads/listed/a%20b.txt": ("a b.txt", "text/plain"),
            "file://uploads/listed/deep%2Fer%2F%C3%BC.png": ("ü.png", "image/png"),
        }


async def test_files_of_one_name_in_two_folders_are_told_apart_by_their_titles(service: Service) -> None:
    for folder in ("left", "right/deep"):
        await put(service, f"{folder}/same.txt", b"words", chat="titles")
    for answer in (
        await service.ask("resources/list", chat="titles"),
        await service.ask_modern("resources/list", chat="titles"),
    ):
        listed = answer["result"]["resources"]
        assert [r["name"] for r in listed] == ["same.txt", "same.txt"]
        assert sorted(r["title"] for r in listed) == ["left/same.txt", "right/deep/same.txt"]


async def test_names_that_are_no_text_are_listed_with_marks_in_their_place(service: Service) -> None:
    await put(service, "d\udcff/n\udcff.txt", b"words", chat="no-text")
    for answer in (
        await service.ask("resources/list", chat="no-text"),
        await service.ask_modern("resources/list", chat="no-text"),
    ):
        (listed,) = answer["result"]["resources"]
        assert listed["name"] == "n?.txt"
        assert listed["title"] == "d\N{REPLACEMENT CHARACTER}/n\N{REPLACEMENT CHARACTER}.txt"


async def test_a_long_list_comes_in_parts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(["a", "a/b", "a-c", "d/e/f", "ü", "z\udcff", "z"])
    paths.remove("a")
    for path in paths:
        await put(service, path, b"x", chat="parts")
    monkeypatch.setattr("cubicle.mcp_api.pagination.MAX_COUNT", 2)
    for ask in (service.ask, service.ask_modern):
        seen, cursor, parts = list[str](), None, 0
        while parts == 0 or cursor is not None:
            result = (await ask("resources/list", {"cursor": cursor} if cursor else {}, chat="parts"))["result"]
            seen += [resource["uri"] for resource in result["resources"]]
            cursor, parts = result.get("nextCursor"), parts + 1
        assert parts == 3
        assert sorted(seen) == sorted(set(seen))
        assert len(seen) == len(paths)
        refused = await ask("resources/list", {"cursor": "~"}, chat="parts")
        assert refused["error"]["code"] == -32602


async def test_each_chat_is_told_of_its_own_files_only(service: Service) -> None:
    for chat in ("left", "right"):
        await put(service, f"of-{chat}.txt", b"mine", chat=chat)
    for chat in ("left", "right"):
        for answer in (
            await service.ask("resources/list", chat=chat),
            await service.ask_modern("resources/list", chat=chat),
        ):
            assert [r["uri"] for r in answer["result"]["resources"]] == [f"file://uploads/{chat}/of-{chat}.txt"]


async def test_one_that_is_too_large_is_said_to_be_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubicle.files.uploads.MAX_READ", 1024**2)
    await put(service, "large.bin", bytes(1024**2 + 1))
    error = (await read(service, "file://uploads/files/large.bin", chat="files"))["error"]
    assert error["code"] == -32602
    assert "too large" in error["message"]
    assert "GET /files/" in error["message"]


async def test_text_is_read_as_text_and_the_rest_as_base64(service: Service) -> None:
    await put(service, "note.md", "# Grüße".encode())
    await put(service, "data.json", b"{}")
    await put(service, "raw.bin", bytes(range(256)))
    contents = (await read(service, "file://uploads/files/note.md", chat="files"))["result"]["contents"]
    assert contents == [{"uri": "file://uploads/files/note.md", "mimeType": "text/markdown", "text": "# Grüße"}]
    contents = (await read(service, "file://uploads/files/data.json", chat="files"))["result"]["contents"]
    assert contents[0]["text"] == "{}"
    contents = (await read(service, "file://uploads/files/raw.bin", chat="files"))["result"]["contents"]
    assert base64.b64decode(contents[0]["blob"]) == bytes(range(256))
    assert contents[0]["mimeType"] == "application/octet-stream"


async def test_another_chats_file_is_as_unknown_as_one_that_is_not_there(service: Service) -> None:
    await put(service, "secret.txt", b"secret", chat="owner")
    uris = ["file://uploads/owner/secret.txt", "file://uploads/files/none.txt", "file:///etc/passwd", "nonsense"]
    uris += ["file://uploads/files/..%2F..%2Fetc%2Fpasswd", "file://uploads/files/", "file://uploads/files/a/b"]
    for uri in uris:
        old = await read(service, uri, chat="files")
        new = await service.ask_modern("resources/read", {"uri": uri}, chat="files")
        assert (old["error"]["code"], new["error"]["code"]) == (-32002, -32602), uri
        assert "secret" not in str(old["error"].get("message")) + str(new["error"].get("message"))


async def test_a_caller_that_names_no_chat_reads_the_file_that_the_uri_names(service: Service) -> None:
    await put(service, "a.txt", b"words", chat="named")
    for answer in (
        await read(service, "file://uploads/named/a.txt", chat=None),
        await service.ask_modern("resources/read", {"uri": "file://uploads/named/a.txt"}, chat=None),
    ):
        assert answer["result"]["contents"][0]["text"] == "words"
    for uri in ("file://uploads/named/b.txt", "file://uploads/never/a.txt", "file://uploads/..%2Fnamed/a.txt"):
        assert (await read(service, uri, chat=None))["error"]["code"] == -32002
    assert not service.fleet.has(Chat("never"))


async def test_a_link_that_leads_out_is_neither_listed_nor_read(service: Service) -> None:
    async with service.fleet.lease(Chat("links")) as machine:
        await machine.write(f"{FOLDER}/x", b"x", as_root=True)
        exit, _ = await machine.output("ln -s /etc/passwd /mnt/user-data/uploads/out")
        assert exit.code != 0
    listed = (await service.ask("resources/list", chat="links"))["result"]["resources"]
    assert [r["name"] for r in listed] == ["x"]


async def test_resource_templates_are_none(service: Service) -> None:
    assert (await service.ask("resources/templates/list"))["result"]["resourceTemplates"] == []
