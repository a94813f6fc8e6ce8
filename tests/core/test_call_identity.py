"""What makes two calls the same call."""

from __future__ import annotations

import pytest

from cubicle.core.call_identity import BadIdentity, CallIdentity, find_identity
from cubicle.core.caller import Headers
from cubicle.core.chat import Chat

KEY = CallIdentity("key:abc", strict=True)


def headers(*values: str) -> Headers:
    return Headers([(b"idempotency-key", value.encode()) for value in values])


@pytest.mark.parametrize("value", ["abc", '"abc"', " abc "])
def test_the_header_goes_before_all_else(value: str) -> None:
    assert find_identity(headers(value), {"cubicle/idempotencyKey": "other"}, "session", 1) == KEY


@pytest.mark.parametrize("name", ["cubicle/idempotencyKey", "idempotencyKey", "idempotency_key"])
def test_a_key_of_the_meta_is_the_same_as_one_of_the_header(name: str) -> None:
    assert find_identity(headers(), {name: "abc", "callId": "call_0123456789"}, "session", 1) == KEY


@pytest.mark.parametrize("name", ["claudecode/toolUseId", "callId", "toolCallId", "tool_call_id"])
def test_the_id_of_a_tool_call_is_an_identity(name: str) -> None:
    assert find_identity(headers(), {name: "toolu_0123456789"}, None, 1) == CallIdentity("call:toolu_0123456789")


@pytest.mark.parametrize("value", ["call_0", "", 7, None, ["toolu_0123456789"], "x" * 300, "toolu_012345\n6789"])
def test_one_that_is_no_good_counts_for_nothing(value: object) -> None:
    assert find_identity(headers(), {"callId": value}, None, 1) is None


def test_without_either_it_is_the_session_and_the_request() -> None:
    one = find_identity(headers(), {}, "session", 1)
    assert one == CallIdentity("request:session:1", chosen=False)
    assert find_identity(headers(), {}, "session", 2) != one
    assert find_identity(headers(), {}, "other", 1) != one
    assert find_identity(headers(), {}, None, 1) is None


@pytest.mark.parametrize("value", ["", '""', "x" * 256, "tab\tbed", "ü"])
def test_a_bad_key_is_refused(value: str) -> None:
    with pytest.raises(BadIdentity, match="255 printable"):
        find_identity(Headers([(b"idempotency-key", value.encode("latin-1"))]), {}, None, 1)
    with pytest.raises(BadIdentity, match="255 printable"):
        find_identity(headers(), {"idempotencyKey": value.strip('"')}, None, 1)


def test_two_headers_are_refused() -> None:
    with pytest.raises(BadIdentity, match="one header"):
        find_identity(headers("a", "b"), {}, None, 1)


def test_the_id_in_the_sandbox_is_that_of_one_call_of_one_chat() -> None:
    ids = {
        identity.command(chat, arguments)
        for identity in (KEY, CallIdentity("key:abd"))
        for chat in (Chat("a"), Chat("b"), Chat("a", "tenant"))
        for arguments in ("1", "2")
    }
    assert len(ids) == 12
    assert KEY.command(Chat("a"), "1") in ids
