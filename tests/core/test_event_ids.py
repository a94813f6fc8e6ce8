"""Ids of events: what they say, and to whom."""

from __future__ import annotations

import pytest

from cubicle.core import event_ids
from cubicle.core.chat import Chat
from cubicle.core.event_ids import EventId

KEY = event_ids.signing_key(b"secret")
CHAT = Chat("one", "tenant")


@pytest.mark.parametrize("request_id", [0, -7, 2**63 - 1, "", "a.b", "é\n\0", "x" * event_ids.MAX_REQUEST_ID])
def test_an_id_says_what_it_was_made_of(request_id: int | str) -> None:
    id = f"{event_ids.prefix(KEY, CHAT, 'session', 'call', request_id)}12"
    assert len(id) <= event_ids.MAX_LENGTH
    assert id.isascii()
    assert id.isprintable()
    assert event_ids.parse(KEY, CHAT, "session", id) == EventId("call", request_id, 12)


@pytest.mark.parametrize("character", ["x", "é", "调", "\U0001f600", "\0", '"', "\\"])
def test_an_id_of_each_request_that_is_short_can_be_shown_again(character: str) -> None:
    most = max(size for size in range(200) if event_ids.is_short(character * size))
    conversation = "c" * 128
    id = f"{event_ids.prefix(KEY, CHAT, 'session', 'c' * 16, character * most, conversation)}{10**9}"
    assert event_ids.parse(KEY, CHAT, "session", id) == EventId("c" * 16, character * most, 10**9)
    assert event_ids.conversation(id) == conversation


def test_an_id_is_for_one_key_chat_tenant_and_session() -> None:
    id = f"{event_ids.prefix(KEY, CHAT, 'session', 'call', 1)}0"
    assert event_ids.parse(KEY, CHAT, "session", id)
    for key, chat, session in (
        (event_ids.signing_key(b"another"), CHAT, "session"),
        (KEY, Chat("two", "tenant"), "session"),
        (KEY, Chat("one", "another"), "session"),
        (KEY, CHAT, "another"),
    ):
        assert event_ids.parse(key, chat, session, id) is None


def test_a_changed_id_is_none() -> None:
    id = f"{event_ids.prefix(KEY, CHAT, 'session', 'call', 1)}0"
    for place in range(id.rindex(".")):
        changed = id[:place] + ("A" if id[place] != "A" else "B") + id[place + 1 :]
        found = event_ids.parse(KEY, CHAT, "session", changed)
        # The last characters of base64 have bits that mean nothing.
        assert found is None or found == EventId("call", 1, 0)


@pytest.mark.parametrize("id", ["", ".", "..", "...", "a.b.c", "é.b.1", "x" * 10_000, "a.b.-1"])
def test_other_texts_are_none(id: str) -> None:
    assert event_ids.parse(KEY, CHAT, "session", id) is None


def test_a_long_id_of_a_request_is_not_short() -> None:
    assert event_ids.is_short(2**63 - 1)
    assert event_ids.is_short("x" * event_ids.MAX_REQUEST_ID)
    assert not event_ids.is_short("x" * (event_ids.MAX_REQUEST_ID + 1))
    assert not event_ids.is_short("é" * event_ids.MAX_REQUEST_ID)
