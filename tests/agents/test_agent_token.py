"""A token serves one chat, for its time, as it was issued, and while what it was made for goes on."""

from __future__ import annotations

import math

import pytest

from cubicle.agents.agent_token import (
    RUN_ENDED,
    TAKE_OVER_ENDED,
    AgentToken,
    TokenSubject,
    check,
    issue,
    refusal,
    signing_key,
)
from cubicle.core.chat import Chat

KEY = signing_key(b"secret")
CHAT = Chat("one")
GIVEN = AgentToken("agent-0", 1000, ("a", "b"))


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
    other = issue(KEY, CHAT, AgentToken("agent-0", 9999, ("a", "b", "c")))
    forged = other.partition(".")[0] + "." + text.partition(".")[2]
    for bad in (forged, text[:-1], text + "0", "", ".", "cubicle-.", "ünicode", "x" * 10_000):
        assert check(KEY, CHAT, bad, 1) is None


def test_a_token_of_a_take_over_is_no_token_of_a_run() -> None:
    theirs = AgentToken("agent-0", 1000, (), take_over=True)
    assert check(KEY, CHAT, issue(KEY, CHAT, theirs), 999) == theirs
    assert issue(KEY, CHAT, theirs) != issue(KEY, CHAT, AgentToken("agent-0", 1000))


@pytest.mark.parametrize(
    ("take_over", "live", "why"),
    [
        (False, TokenSubject(), RUN_ENDED),
        (False, TokenSubject(frozenset({"agent-1"})), RUN_ENDED),
        (False, TokenSubject(frozenset({"agent-0"})), ""),
        (False, TokenSubject(terminal_until=math.inf), RUN_ENDED),
        (True, TokenSubject(frozenset({"agent-0"})), TAKE_OVER_ENDED),
        (True, TokenSubject(terminal_until=99.0), TAKE_OVER_ENDED),
        (True, TokenSubject(terminal_until=101.0), ""),
        (True, TokenSubject(terminal_until=math.inf), ""),
    ],
)
def test_what_goes_on_decides(take_over: bool, live: TokenSubject, why: str) -> None:
    assert refusal(AgentToken("agent-0", 1000, (), take_over), live, 100.0) == why
