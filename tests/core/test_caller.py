"""Who is calling, from headers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.core import caller as callers
from cubicle.core.api_keys import BadKeys
from cubicle.core.caller import Headers, identify
from cubicle.core.chat import BadChatId, Chat
from cubicle.core.chat_isolation import ChatIdMissing, Isolation
from cubicle.core.hosts import host_is_known, names_of_this_machine, origin_is_known
from cubicle.core.keys import KeyRing

CHAT_CHARACTERS = "ABCXYZabcxyz0189._:@-"
CHAT_IDS = st.text(CHAT_CHARACTERS, min_size=1, max_size=128).filter(lambda s: not s.startswith("."))
BLANKS = st.text(" \t", max_size=3)


def headers(**values: str) -> Headers:
    return Headers([(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in values.items()])


@given(CHAT_IDS, BLANKS, BLANKS, st.sampled_from(callers.CHAT_HEADERS), st.booleans())
def test_a_chat_id_is_found_under_every_name_in_any_case_and_trimmed(
    chat: str, before: str, after: str, name: str, upper: bool
) -> None:
    raw = [((name.upper() if upper else name.lower()).encode(), (before + chat + after).encode())]
    caller = identify(Headers(raw), Isolation.STRICT)
    assert caller.chat == Chat(chat)
    assert not caller.shared


@given(st.permutations(callers.CHAT_HEADERS), st.integers(0, 3))
def test_the_first_name_that_has_a_value_wins(order: list[str], empty: int) -> None:
    values = {name: f"chat{index}" for index, name in enumerate(callers.CHAT_HEADERS)}
    for name in callers.CHAT_HEADERS[:empty]:
        values[name] = ("", "  ", "{{CHAT_ID}}")[empty - 1]
    raw = [(name.encode(), values[name].encode()) for name in order]
    assert callers.chat_id(Headers(raw)) == f"chat{empty}"


@pytest.mark.parametrize("value", ["", "   ", "{{CHAT_ID}}", "x-{{LIBRECHAT_BODY_CONVERSATIONID}}", "{{}}"])
def test_empty_values_and_unfilled_templates_are_absent(value: str) -> None:
    assert callers.chat_id(headers(X_Chat_Id=value)) is None
    with pytest.raises(ChatIdMissing):
        identify(headers(X_Chat_Id=value), Isolation.STRICT)


@given(st.text(max_size=140))
def test_a_chat_id_is_taken_exactly_when_it_has_the_right_characters(text: str) -> None:
    right = 0 < len(text) <= 128 and not text.startswith(".")
    right = right and all(c.isascii() and (c.isalnum() or c in "._:@-") for c in text)
    if right:
        assert Chat(text).id == text
    else:
        with pytest.raises(BadChatId):
            Chat(text)


@given(CHAT_IDS, CHAT_IDS, st.sampled_from(["main", "a", "b"]), st.sampled_from(["main", "a", "b"]))
def test_digests_differ_exactly_when_chats_do(one: str, other: str, tenant: str, another: str) -> None:
    first, second = Chat(one, tenant), Chat(other, another)
    assert (first.digest == second.digest) == (first == second)
    assert len(first.digest) == 32


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=60)), max_size=8))
def test_no_headers_whatsoever_break_the_reading(raw: list[tuple[bytes, bytes]]) -> None:
    read = Headers(raw)
    for value in (callers.email(read), callers.display_name(read), *callers.mcp_servers(read)):
        assert value is None or (value.strip() == value and "\n" not in value and "\r" not in value)


def test_person_and_servers_are_read() -> None:
    read = headers(X_User_Email="a@b.c", X_User_Name="J%C3%BCrgen%0AK", X_MCP_Servers="git, jira,,git")
    caller = identify(read, Isolation.LENIENT)
    assert (caller.email, caller.name, caller.mcp_servers) == ("a@b.c", "Jürgen K", ("git", "jira"))
    assert caller.shared
    other = headers(X_OpenWebUI_User_Email="o@w", X_OpenWebUI_User_Name="O", X_OpenWebUI_MCP_Servers="x")
    caller = identify(other, Isolation.SINGLE)
    assert (caller.email, caller.name, caller.mcp_servers, caller.shared) == ("o@w", "O", ("x",), False)
    assert callers.email(headers(X_LibreChat_User_Email="l@c")) == "l@c"


def test_an_empty_ring_asks_for_nothing_and_a_full_one_for_the_right_key() -> None:
    assert KeyRing.parse().tenant(None) == "main"
    ring = KeyRing.parse("single-key", json.dumps({"key-of-tenant-a": "a"}))
    assert ring
    assert ring.tenant("Bearer single-key") == "main"
    assert ring.tenant("bearer key-of-tenant-a") == "a"
    for wrong in (None, "", "Bearer", "Bearer ", "Bearer single-ke", "Bearer single-key x", "Basic single-key"):
        assert ring.tenant(wrong) is None


@given(st.text(max_size=30))
def test_only_the_key_itself_opens(text: str) -> None:
    assert KeyRing.parse("the-one-key").tenant(f"Bearer {text}") == ("main" if text.strip() == "the-one-key" else None)


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"short": "a"}', '{"long-enough": ""}', '{"long-enough": 1}', '{"a b c d e": "t"}']
)
def test_a_bad_file_of_keys_is_refused_without_showing_a_key(text: str) -> None:
    with pytest.raises(BadKeys) as refusal:
        KeyRing.parse("", text)
    assert "API_KEYS_FILE" in str(refusal.value)
    assert "long-enough" not in str(refusal.value)


@pytest.mark.parametrize(
    "key", ["k", "7-chars", " ", " " * 20, "two words", "trailing-blank ", "tab\there", "schlüssel"]
)
def test_a_key_that_is_short_or_has_blanks_is_refused_wherever_it_stands(key: str) -> None:
    for where, single, text in (("MCP_API_KEY", key, ""), ("API_KEYS_FILE", "", json.dumps({key: "acme"}))):
        with pytest.raises(BadKeys) as refusal:
            KeyRing.parse(single, text)
        assert str(refusal.value).startswith(f"{where}: a key is at least 8 printable ASCII characters without blanks.")
        assert len(key) < 5 or not key.strip() or key not in str(refusal.value)
    assert KeyRing.parse("8-chars-").tenant("Bearer 8-chars-") == "main"


@pytest.mark.parametrize("name", ["main", "Main", "MAIN", "operator", "cubicle"])
def test_no_tenant_takes_the_operators_name(name: str) -> None:
    with pytest.raises(BadKeys, match="which is the operator's"):
        KeyRing.parse("", json.dumps({"key-of-a-customer": name}))
    other = KeyRing.parse("", json.dumps({"key-of-a-customer": f"{name}e"}))
    assert other.tenant("Bearer key-of-a-customer") == f"{name}e"


@pytest.mark.parametrize("tenants", ['{"long-enough": "a"}', '{"other-key-1": "a", "long-enough": "b"}'])
def test_one_key_cannot_open_two_tenants(tenants: str) -> None:
    with pytest.raises(BadKeys, match="give each tenant its own key"):
        KeyRing.parse("long-enough", tenants)
    with pytest.raises(BadKeys, match="names a key twice"):
        KeyRing.parse("", '{"long-enough": "a", "long-enough": "b"}')


def test_only_a_service_on_loopback_has_a_list_of_names_by_itself() -> None:
    for host in ("127.0.0.1", "127.0.0.7", "localhost", "::1"):
        names = names_of_this_machine(host, "https://Box.example/c")
        assert {"localhost", "box.example"} < set(names)
        assert host_is_known(names, f"[{host}]:80" if ":" in host else f"{host}:80")
        assert not host_is_known(names, "evil.example")
    for host in ("0.0.0.0", "::", "10.0.0.1", "box"):
        assert names_of_this_machine(host, "") == ()


def test_hosts_are_compared_without_case_and_with_or_without_port() -> None:
    assert host_is_known((), "anything")
    assert host_is_known(("Box",), "box:8081")
    assert host_is_known(("[::1]",), "[::1]:8081")
    assert host_is_known(("box:81",), "box:81")
    assert not host_is_known(("box:81",), "box:82")
    assert not host_is_known(("box",), None)
    assert origin_is_known(("box",), None)
    assert origin_is_known(("box",), "https://box:81")
    assert not origin_is_known(("box",), "https://evil")
    assert not origin_is_known(("box",), "http://[")
