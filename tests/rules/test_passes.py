"""A pass serves one chat, for its time, as it was issued."""

from __future__ import annotations

from cubicle.rules.chats import Chat
from cubicle.rules.passes import Pass, check, issue, signing_key

KEY = signing_key(b"secret")
CHAT = Chat("one")
GIVEN = Pass("agent-0", 1000, ("a", "b"))


def test_a_pass_is_taken_back_as_it_was_issued() -> None:
    assert check(KEY, CHAT, issue(KEY, CHAT, GIVEN), 999) == GIVEN


def test_a_pass_serves_no_other_chat_key_or_time() -> None:
    text = issue(KEY, CHAT, GIVEN)
    assert check(KEY, Chat("two"), text, 999) is None
    assert check(KEY, Chat("one", "other-tenant"), text, 999) is None
    assert check(signing_key(b"other"), CHAT, text, 999) is None
    assert check(KEY, CHAT, text, 1000) is None


def test_a_changed_pass_is_none() -> None:
    text = issue(KEY, CHAT, GIVEN)
    other = issue(KEY, CHAT, Pass("agent-0", 9999, ("a", "b", "c")))
    forged = other.partition(".")[0] + "." + text.partition(".")[2]
    for bad in (forged, text[:-1], text + "0", "", ".", "cubicle-.", "ünicode", "x" * 10_000):
        assert check(KEY, CHAT, bad, 1) is None
