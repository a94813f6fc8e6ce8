"""`cubicle keys` and `cubicle links`: what they print, what they write, and two of them at once."""

from __future__ import annotations

import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cubicle.chat.access import Access
from cubicle.chat.key_file import change_file, read_file
from cubicle.chat.links import Links
from cubicle.cli import main
from cubicle.core.api_keys import ApiKey, KeyLimits
from cubicle.core.identity import LinkAccess, Role
from cubicle.core.keys import KeyRing
from cubicle.settings import load


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "etc" / "keys.json"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("API_KEYS_FILE", str(file))
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PUBLIC_BASE_URL", "https://box.example")
    return file


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def made(*words: str) -> str:
    result = run("keys", "add", *words)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def ring(keys: Path) -> KeyRing:
    return KeyRing.parse("", keys.read_text())


def test_a_key_is_shown_once_and_its_digest_is_kept(keys: Path) -> None:
    key = made("--tenant", "acme", "--label", "CI", "--expires", "90d", "--calls-per-minute", "60", "--sandboxes", "3")
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    found = ring(keys).opens(key)
    assert found is not None
    assert (found.tenant, found.role, found.label, found.limits) == ("acme", Role.USER, "CI", KeyLimits(60, 0, 3))
    assert found.expires is not None
    assert 0 <= found.expires - found.created - 90 * 86400 <= 1
    secret = key.split("_", 2)[2]
    assert secret not in keys.read_text()
    listed = run("keys", "list").output
    assert secret not in listed
    assert all(
        word in listed for word in (found.id, "acme", "user", "works", "in 90d", "60 a minute", "3 sandboxes", "CI")
    )


def test_an_operators_key_needs_no_tenant_and_a_users_does(keys: Path) -> None:
    found = ring_of(keys, made("--role", "operator"))
    assert (found.tenant, found.role) == ("main", Role.OPERATOR)
    assert "--tenant" in run("keys", "add").output
    for words in (
        ["--tenant", "main"],
        ["--tenant", "Operator"],
        ["--tenant", "a b"],
        ["--tenant", "x", "--role", "operator"],
    ):
        refused = run("keys", "add", *words)
        assert refused.exit_code == 1
        assert "tenant" in refused.output


def ring_of(keys: Path, key: str) -> ApiKey:
    found = ring(keys).opens(key)
    assert found is not None
    return found


def test_a_revoked_key_stays_in_the_list_and_opens_nothing(keys: Path) -> None:
    key, other = made("--tenant", "acme"), made("--tenant", "acme")
    id = ring_of(keys, key).id
    assert run("keys", "revoke", id).exit_code == 0
    assert ring(keys).opens(key) is None
    assert ring(keys).opens(other) is not None
    assert "revoked" in run("keys", "list").output
    assert run("keys", "revoke", "nothing").exit_code == 1
    assert "is revoked" in run("keys", "rotate", id).output


def test_a_key_is_rotated_with_all_that_it_may(keys: Path) -> None:
    old = made("--tenant", "acme", "--label", "CI", "--expires", "30d", "--calls-at-once", "2")
    was = ring_of(keys, old)
    new = run("keys", "rotate", was.id).stdout.strip()
    found = ring_of(keys, new)
    assert (found.tenant, found.label, found.limits) == (was.tenant, was.label, was.limits)
    assert found.id != was.id
    assert found.expires is not None
    assert ring(keys).opens(old) is None
    newer = run("keys", "rotate", found.id, "--keep-old", "1h").stdout.strip()
    kept = ring_of(keys, new)
    assert kept.expires is not None
    assert kept.expires - time.time() <= 3600
    assert ring(keys).opens(newer) is not None


def test_keys_that_can_be_read_are_hashed_and_go_on_working(keys: Path) -> None:
    keys.parent.mkdir()
    keys.write_text(json.dumps({"key-of-tenant-a": "a"}))
    keys.chmod(0o640)
    assert "can be read" in run("keys", "list").output
    assert run("keys", "hash").exit_code == 0
    assert "key-of-tenant-a" not in keys.read_text()
    assert stat.S_IMODE(keys.stat().st_mode) == 0o640
    assert ring_of(keys, "key-of-tenant-a").tenant == "a"


def test_two_who_add_keys_at_once_lose_none(keys: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda n: change_file(keys, lambda file: file.with_key(f"a-long-key-{n}", ApiKey(f"{n:04x}", "acme"))),
                range(20),
            )
        )
    assert len(read_file(keys).keys) == 20


def test_a_file_that_cannot_be_read_is_left_as_it_is(keys: Path) -> None:
    keys.parent.mkdir()
    keys.write_text('{"half a')
    for words in (["add", "--tenant", "acme"], ["list"], ["revoke", "abcd"], ["rotate", "abcd"], ["hash"]):
        result = run("keys", *words)
        assert result.exit_code == 1
        assert "does not hold JSON" in result.output
    assert keys.read_text() == '{"half a'


def test_without_the_setting_it_says_what_to_set(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("API_KEYS_FILE")
    assert "Set API_KEYS_FILE" in run("keys", "list").output


def links() -> Links:
    return Access._open(load(), load().data_dir / "links").links


def test_a_link_is_made_listed_and_revoked(keys: Path) -> None:
    made("--tenant", "acme")
    result = run("links", "add", "room", "--tenant", "acme", "--access", "control", "--for", "2h", "--label", "ann")
    assert result.exit_code == 0, result.output
    page, _, key = result.stdout.strip().partition("?key=")
    assert page == "https://box.example/preview/room/"
    grant = links().opened("room", key)
    assert grant is not None
    assert (grant.chat.tenant, grant.access) == ("acme", LinkAccess.CONTROL)
    listed = run("links", "list").output
    assert grant.mark.id in listed
    assert key not in listed
    assert run("links", "revoke", "room", "--tenant", "acme", "0" * 16).exit_code == 1
    assert run("links", "revoke", "room", grant.mark.id, "--tenant", "acme").exit_code == 0
    assert links().opened("room", key) is None
    shared = links().key(grant.chat)
    assert run("links", "revoke", "room", "--tenant", "acme").exit_code == 0
    assert links().opened("room", shared) is None
    assert links().opened("room", links().key(grant.chat)) is not None
    assert "No key of the tenant" in run("links", "add", "room", "--tenant", "nobody").output


def test_a_link_that_signs_in_names_a_key(keys: Path) -> None:
    id = ring_of(keys, made("--tenant", "acme")).id
    assert run("links", "sign-in").exit_code == 1
    url = run("links", "sign-in", "--key", id).stdout.strip()
    assert url.startswith("https://box.example/login?once=")
    token = url.partition("?once=")[2]
    who = links().use_one_time(token)
    assert who is not None
    assert (who.tenant, who.key_id) == ("acme", id)
    assert links().use_one_time(token) is None
