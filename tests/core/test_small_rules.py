"""Media types, resource URIs, messages, arguments, Accept, image headers, problems."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.core import problem
from cubicle.core.accept import accepts_mcp, asks_for, is_json
from cubicle.core.image_header import read_header
from cubicle.core.media_types import is_text, looks_binary, media_type
from cubicle.core.resource_uris import NoSuchResource, UploadUri
from cubicle.mcp_api import jsonrpc
from cubicle.mcp_api.jsonrpc import BadJsonRpc
from cubicle.tools.arguments import Arguments, BadArgument

CHARACTERS = st.characters(codec="utf-8") | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)
NAMES = st.text(CHARACTERS, min_size=1, max_size=20).filter(
    lambda n: "/" not in n and "\0" not in n and n not in (".", "..")
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.text("abc.:@_-", min_size=1, max_size=20), st.lists(NAMES, min_size=1, max_size=4))
def test_a_resource_uri_is_read_back_as_it_was_written(chat: str, parts: list[str]) -> None:
    uri = UploadUri(chat, "/".join(parts))
    text = str(uri)
    assert text.count("/") == 4
    assert text.isascii()
    assert UploadUri.parse(text) == uri


@given(st.text(max_size=60))
def test_no_text_breaks_the_reading_of_a_uri(text: str) -> None:
    for candidate in (text, f"file://uploads/{text}", f"file://uploads/c/{text}"):
        try:
            parsed = UploadUri.parse(candidate)
        except NoSuchResource:
            continue
        assert not parsed.path.startswith("/")
        assert ".." not in parsed.path.split("/")


@pytest.mark.parametrize("path", ["..%2Fx", "%2Fetc", "a%2F..%2Fb", "", "a%00", "a/b", ".", "a%2F%2Fb"])
def test_paths_that_lead_elsewhere_are_no_resources(path: str) -> None:
    with pytest.raises(NoSuchResource):
        UploadUri.parse(f"file://uploads/chat/{path}")


@pytest.mark.parametrize(
    ("name", "kind", "textual"),
    [
        ("a.txt", "text/plain", True),
        ("a.MD", "text/markdown", True),
        ("deep/a.csv", "text/csv", True),
        ("a.json", "application/json", True),
        ("a.svg", "image/svg+xml", True),
        ("a.html", "text/html", True),
        ("a.png", "image/png", False),
        ("a.pdf", "application/pdf", False),
        ("a.zip", "application/zip", False),
        ("a.tar.gz", "application/gzip", False),
        ("src/Makefile", "text/x-makefile", True),
        ("Dockerfile", "text/x-dockerfile", True),
        ("README", "text/plain", True),
        (".gitignore", "text/plain", True),
        ("a.php", "application/x-httpd-php", True),
        ("a.kt", "text/x-kotlin", True),
        ("a.cs", "text/x-csharp", True),
        ("a.scss", "text/x-scss", True),
        ("a.vue", "text/x-vue", True),
        ("a.diff", "text/x-diff", True),
        ("a.patch", "text/x-diff", True),
        ("a.ics", "text/calendar", True),
        ("a.geojson", "application/geo+json", True),
        ("a.xhtml", "application/xhtml+xml", True),
        ("a.ogg", "audio/ogg", False),
        ("a.oga", "audio/ogg", False),
        ("a.ogv", "video/ogg", False),
        ("a.flac", "audio/flac", False),
        ("a.m4a", "audio/mp4", False),
        ("a.mkv", "video/x-matroska", False),
        ("a.odt", "application/vnd.oasis.opendocument.text", False),
        ("a.ods", "application/vnd.oasis.opendocument.spreadsheet", False),
        ("a.odp", "application/vnd.oasis.opendocument.presentation", False),
        ("a.epub", "application/epub+zip", False),
        ("a.rtf", "application/rtf", False),
        ("a.woff2", "font/woff2", False),
        ("unknown", "application/octet-stream", False),
        (".md", "application/octet-stream", False),
        ("", "application/octet-stream", False),
    ],
)
def test_types_go_by_name(name: str, kind: str, textual: bool) -> None:
    assert media_type(name) == kind
    assert is_text(kind) is textual


def test_bytes_that_are_no_text_are_known() -> None:
    assert looks_binary(b"a\0b")
    assert looks_binary(bytes(range(128, 256)))
    assert not looks_binary("Grüße".encode())
    assert not looks_binary(b"")


@given(JSON_VALUES)
def test_any_json_is_a_message_or_refused(value: Any) -> None:
    refusal = ""
    try:
        jsonrpc.parse(value)
    except BadJsonRpc as error:
        refusal = str(error)
    assert not refusal or refusal.endswith(".")


@given(
    st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"]), JSON_VALUES | st.just("2.0")
    )
)
def test_a_message_that_is_taken_has_the_right_parts(value: dict[str, Any]) -> None:
    try:
        message = jsonrpc.parse(value)
    except BadJsonRpc:
        return
    assert value["jsonrpc"] == "2.0"
    assert message.method is None or isinstance(message.method, str)
    assert message.id is None or isinstance(message.id, int | str)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON_VALUES))
def test_any_arguments_are_read_or_refused_by_name(values: dict[str, Any]) -> None:
    arguments = Arguments(values)
    for read in (
        lambda: arguments.text("a", "b"),
        lambda: arguments.path("a"),
        lambda: arguments.optional_number("a", 1, 10),
        lambda: arguments.optional_choice("a", ("x", "y")),
        lambda: arguments.optional_pair("a"),
    ):
        refusal = "`a`"
        try:
            read()
        except BadArgument as error:
            refusal = str(error)
        assert "`a`" in refusal


def test_arguments_have_aliases_and_null_is_absent() -> None:
    arguments = Arguments({"file_text": "x", "content": None, "n": "5", "pair": [1, -1], "huge": float("nan")})
    assert arguments.text("content", "file_text") == "x"
    assert arguments.optional_number("n", 1, 10) == 5
    assert arguments.optional_pair("pair") == (1, -1)
    with pytest.raises(BadArgument, match="from 1 to 86,400"):
        arguments.optional_number("huge", 1, 86_400)
    with pytest.raises(BadArgument):
        Arguments({"pair": [True, 2]}).optional_pair("pair")


def test_a_long_accept_header_is_read_to_a_limit() -> None:
    assert accepts_mcp([",".join(["a/b"] * 900), "application/json, text/event-stream"])
    assert not accepts_mcp(["," * 1000, "application/json, text/event-stream"])
    assert not accepts_mcp(["application/json;q=0, text/event-stream"])
    assert accepts_mcp(["application/json" + ";a" * 60_000 + ";q=0, text/event-stream"])


@given(st.lists(st.text(max_size=30), max_size=3))
def test_no_accept_header_breaks_the_reading(values: list[str]) -> None:
    assert not accepts_mcp(values) or all("/" in value or "," in value or not value for value in values[:1])
    assert accepts_mcp([*values, "application/json", "text/event-stream"])
    assert not asks_for(["text/plain;q=0", *values], "text/plain", instead_of="application/json")
    is_json(values[0] if values else None)


def test_image_headers_tell_kind_and_size() -> None:
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480)
    gif = b"GIF89a" + struct.pack("<HH", 3, 4)
    jpeg = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08\x00\x10\x00\x20" + bytes(9)
    bmp = b"BM" + bytes(16) + struct.pack("<ii", 7, -8)
    vp8x = b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + b"\x09\0\0\x04\0\0"
    sizes = [(h.kind, h.width, h.height) for h in map(read_header, (png, gif, jpeg, bmp, vp8x)) if h]
    assert sizes == [("png", 640, 480), ("gif", 3, 4), ("jpeg", 32, 16), ("bmp", 7, 8), ("webp", 10, 5)]
    assert read_header(b"plain text") is None


@given(
    st.sampled_from([b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff", b"RIFF0000WEBPVP8 ", b"BM", b"II*\0"]),
    st.binary(max_size=80),
)
def test_no_image_header_breaks_the_reading(start: bytes, rest: bytes) -> None:
    found = read_header(start + rest)
    assert found is None or (found.width >= 0 and found.height >= 0)


def test_a_problem_has_the_four_fields() -> None:
    body = json.loads(problem.not_allowed("POST").body())
    assert body == {
        "type": "about:blank",
        "title": "Method Not Allowed",
        "status": 405,
        "detail": "This address answers to POST only.",
    }
