"""Keys in a file: what it holds, what is refused, and that to find one takes the same work whatever their number."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.core import api_keys
from cubicle.core.api_keys import ApiKey, BadKeys, KeyFile, KeyLimits, new_id, new_key
from cubicle.core.identity import Role
from cubicle.core.keys import KeyRing

NOW = 1_800_000_000
FULL = ApiKey("abcd", "acme", Role.USER, "the CI of ann", NOW, NOW + 60, None, KeyLimits(60, 4, 2))


def test_a_file_holds_digests_and_all_that_is_known_of_a_key() -> None:
    key = new_key("abcd")
    file = KeyFile.empty().with_key(key, FULL).with_key(new_key("ef01"), ApiKey("ef01", "main", Role.OPERATOR))
    read = api_keys.parse(file.text())
    assert read == file
    assert replace(read.find("abcd"), digest="") == FULL
    assert key not in file.text()
    assert key.split("_", 2)[2] not in file.text()


def test_two_files_have_different_digests_of_one_key() -> None:
    one, two = (KeyFile.empty().with_key("the-same-key", FULL).keys[0].digest for _ in range(2))
    assert one != two


def test_a_key_works_until_it_expires_or_is_revoked() -> None:
    clock = [float(NOW)]
    file = KeyFile.empty().with_key("the-key-of-acme", FULL)
    ring = KeyRing({}, file, clock=lambda: clock[0])
    found = ring.opens("the-key-of-acme")
    assert found is not None
    assert (found.id, found.tenant, found.limits) == ("abcd", "acme", KeyLimits(60, 4, 2))
    assert ring.has_tenant("acme")
    clock[0] += 60
    assert ring.opens("the-key-of-acme") is ring.of_id("abcd") is None
    assert not ring.has_tenant("acme")
    assert ring, "it goes on to ask for a key"
    revoked = KeyRing({}, file.with_changed("abcd", revoked=NOW, expires=None), clock=lambda: clock[0])
    assert revoked.opens("the-key-of-acme") is None


def test_a_file_without_a_key_opens_nothing() -> None:
    ring = KeyRing.parse("", KeyFile.empty().text())
    assert ring
    assert ring.tenant(None) is ring.tenant("Bearer x") is None


def test_keys_that_take_the_place_of_others_do_so_at_once_and_never_open_the_service() -> None:
    ring = KeyRing.parse("the-old-key")
    ring.replace(KeyRing.parse("the-new-key"))
    assert (ring.tenant("Bearer the-old-key"), ring.tenant("Bearer the-new-key")) == (None, "main")
    version = ring.version
    ring.replace(KeyRing.parse())
    assert ring.tenant("Bearer the-new-key") is ring.tenant(None) is None
    assert ring.version != version


def test_links_of_a_tenant_end_when_one_of_its_keys_is_revoked_and_not_when_one_is_made() -> None:
    file = KeyFile.empty().with_key("key-one-of-acme", ApiKey("aaaa", "acme"))
    more = file.with_key("key-two-of-acme", ApiKey("bbbb", "acme")).with_key("of-rival", ApiKey("cccc", "rival"))
    less = more.with_changed("bbbb", revoked=NOW)
    generations = [KeyRing({}, each).generation("acme") for each in (file, more, less)]
    assert generations[0] == generations[1] != generations[2]
    assert KeyRing({}, more).generation("rival") == KeyRing({}, less).generation("rival")


@pytest.mark.parametrize("tenant", ["main", "Main", "operator", "CUBICLE"])
def test_reserved_names_are_refused_in_either_form(tenant: str) -> None:
    with pytest.raises(BadKeys, match="which is the operator's"):
        KeyFile.empty().with_key("long-enough", ApiKey("abcd", tenant))
    file = json.loads(KeyFile.empty().with_key("long-enough", FULL).text())
    file["keys"][0]["tenant"] = tenant
    with pytest.raises(BadKeys, match="which is the operator's"):
        api_keys.parse(json.dumps(file))


def test_an_operators_key_is_of_the_operators_tenant() -> None:
    with pytest.raises(BadKeys, match="belongs to the tenant"):
        KeyFile.empty().with_key("long-enough", ApiKey("abcd", "acme", Role.OPERATOR))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", ""), ("id", "A B"), ("id", 5), ("tenant", ""), ("tenant", None), ("role", "root"), ("label", "a\nb"),
        ("label", "x" * 201), ("expires", "soon"), ("expires", -1), ("expires", True), ("revoked", 1.5), ("digest", "x"),
        ("digest", ""), ("limits", []), ("limits", {"sandboxes": -1}), ("limits", {"calls_at_once": "many"}),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(name: str, value: object) -> None:
    file = json.loads(KeyFile.empty().with_key("long-enough", FULL).text())
    file["keys"][0][name] = value
    with pytest.raises(BadKeys, match="API_KEYS_FILE") as refused:
        api_keys.parse(json.dumps(file))
    assert "long-enough" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ['{"version": 2}', '{"version": 1}', '{"version": 1, "salt": "zz", "keys": []}', "[" * 9999]
)
def test_a_file_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadKeys):
        api_keys.parse(text)


@given(st.binary(max_size=200))
def test_no_file_breaks_the_reader(content: bytes) -> None:
    text = content.decode("latin-1")
    with contextlib.suppress(BadKeys):
        api_keys.parse(text)


def test_keys_that_can_be_read_become_digests_and_go_on_working() -> None:
    plain = json.dumps({"key-of-tenant-a": "a", "key-of-tenant-b": "b"})
    hashed = api_keys.parse(plain).hashed(NOW)
    assert not hashed.plain
    assert "key-of-tenant" not in hashed.text()
    ring = KeyRing.parse("", hashed.text())
    assert [ring.tenant(f"Bearer key-of-tenant-{name}") for name in "ab"] == ["a", "b"]
    assert not ring.shows_keys
    assert KeyRing.parse("", plain).shows_keys


def test_the_id_of_a_key_that_can_be_read_needs_the_secret_of_the_service() -> None:
    ids = {KeyRing.parse("the-one-key", pepper=pepper).opens("the-one-key") for pepper in (b"a" * 32, b"b" * 32)}
    assert len({found.id for found in ids if found}) == 2


def test_to_find_a_key_takes_no_longer_among_many() -> None:
    def seconds(count: int) -> float:
        file = KeyFile(b"s" * 16, tuple(ApiKey(f"{n:08x}", "acme", digest=f"{n:064x}") for n in range(count)))
        ring = KeyRing({}, file.with_key("the-right-key", ApiKey("right1", "acme")))
        best = 1.0
        for _ in range(30):
            start = time.thread_time()
            for _ in range(50):
                assert ring.opens("the-right-key") is not None
                assert ring.opens("a-wrong-key") is None
            best = min(best, time.thread_time() - start)
        return best

    assert seconds(20_000) < 5 * seconds(2)


def test_an_id_is_short_and_a_key_begins_with_it() -> None:
    id = new_id()
    assert new_key(id).startswith(f"cubicle_{id}_")
    assert len(new_key(id)) > 40
