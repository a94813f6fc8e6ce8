"""What is remembered of MCP sessions, within bounds that no tenant uses up for others."""

from __future__ import annotations

import tracemalloc

import pytest

from cubicle.mcp_api import sessions
from cubicle.mcp_api.request_ids import RequestIds
from cubicle.mcp_api.sessions import McpSessions, SessionNotes

MANY = 12_000


def test_a_tenant_with_very_many_sessions_makes_nothing_of_others_be_forgotten() -> None:
    ids, ended = RequestIds(), McpSessions()
    ids.note("acme", "s1", 1, "initialize")
    ids.note("acme", "s1", 1, "tools/list")
    ended.end("acme", "s2")
    for number in range(MANY):
        ids.note_reuse("loud", str(number))
        ended.end("loud", str(number))
    assert not ids.are_unique("acme", "s1"), "its next command would get the answer of the one before"
    assert ended.is_ended("acme", "s2")


def test_a_session_that_is_used_is_not_forgotten_for_newer_ones() -> None:
    ids = RequestIds()
    ids.note_reuse("acme", "s1")
    for number in range(MANY):
        ids.note_reuse("acme", str(number))
        assert not ids.are_unique("acme", "s1")
    assert ids.are_unique("acme", "0")


def test_a_long_id_or_method_of_a_request_is_not_kept_for_as_long_as_its_session() -> None:
    ids = RequestIds()
    tracemalloc.start()
    for number in range(100):
        ids.note("acme", str(number), str(number) * 100_000, "m" * (100_000 + number))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1_000_000
    ids.note("acme", "7", "7" * 100_000, "tools/list")
    ids.note("acme", "8", "8" * 100_000, "m" * 100_008)
    assert not ids.are_unique("acme", "7")
    assert ids.are_unique("acme", "8")


def test_sessions_of_all_tenants_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_OF_A_TENANT", 10)
    monkeypatch.setattr(sessions, "MAX_OF_ALL", 30)
    notes: SessionNotes[int] = SessionNotes()
    notes.put("small", "s1", 1)
    for number in range(100):
        for tenant in range(5):
            notes.put(str(tenant), str(number), number)
    assert len(notes) == 30
    assert notes.get("small", "s1") == 1
    assert notes.get("0", "99") == 99
    for number in range(100):
        notes.put(f"tenant {number}", "s1", 1)
    assert len(notes) == len(notes._tenants) == 30
