import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from cubicle.chat.links import FRAME_SECONDS, Links, kept_secret
from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.core.signing import Grant, LinkGrant, Reach, SignIn
from cubicle.sandbox.lost_found import LostFound

CHAT = Chat("a:b@c")
RING = KeyRing({"a key": "main", "acme-key": "acme"})
NOW = 1_800_000_000


def test_the_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    data = tmp_path / "data"
    first = kept_secret(data)
    assert len(first) == 32
    assert kept_secret(data) == first
    assert stat.S_IMODE((data / "link-secret").stat().st_mode) == 0o600
    assert [p.name for p in data.iterdir()] == ["link-secret"]


def test_services_that_start_together_agree_on_one_secret(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: kept_secret(tmp_path), range(32)))) == 1


def test_a_damaged_secret_is_set_aside_and_not_used(tmp_path):
    (tmp_path / "link-secret").write_bytes(b"short")
    secret = kept_secret(tmp_path)
    assert len(secret) == 32
    assert kept_secret(tmp_path) == secret
    (kept,) = LostFound(tmp_path).entries()
    assert (kept.path / "link-secret").read_bytes() == b"short"


def test_a_link_to_a_file_is_escaped_and_carries_the_signature():
    links = Links(b"s" * 32, "https://box.example/p/", RING, clock=lambda: NOW)
    address = links.file(CHAT, "sub folder/50% of ü?.txt")
    head, key = address.split("?key=")
    assert head == "https://box.example/p/files/a%3Ab%40c/sub%20folder/50%25%20of%20%C3%BC%3F.txt"
    assert links.opened("a:b@c", key) == LinkGrant(CHAT)


def test_without_an_api_key_links_carry_no_signature():
    assert Links(b"s" * 32, "http://127.0.0.1:8081", KeyRing({})).file(CHAT, "x").endswith("/x")


def links_with(ring, now=NOW):
    return Links(b"s" * 32, "https://box.example", KeyRing(ring), clock=lambda: now)


def key_id(links, key):
    return links._ring.opens(key).id


@pytest.mark.parametrize(
    ("ring", "opens"),
    [
        ({"k1": "main", "k2": "acme"}, True),
        ({"other": "main", "k2": "acme"}, True),
        ({"k1": "main", "new": "acme"}, False),
        ({"k1": "main", "k2": "acme", "more": "acme"}, False),
        ({"k1": "main"}, False),
    ],
)
def test_a_tenants_links_and_sign_ins_last_as_long_as_its_keys(ring, opens):
    chat = Chat("room", "acme")
    before, after = links_with({"k1": "main", "k2": "acme"}), links_with(ring)
    assert after.opened("room", before.key(chat)) == (LinkGrant(chat) if opens else None)
    grant = Grant(chat, Reach.PAGE)
    assert after.opened_capability(before.capability(grant), "x") == (grant if opens else None)
    who = SignIn("acme", key_id=key_id(before, "k2"))
    assert after.signed_in(before.sign_in(who)) == (who if "k2" in ring else None)


def test_what_a_link_leads_to_lasts_no_longer_than_the_link():
    made = links_with({"k": "main"})
    key = made.key(CHAT)
    end = int(key.split(".")[0])
    late = links_with({"k": "main"}, end - 5)
    assert late.file(CHAT, "x", key).endswith(f"?key={key}")
    for reach in Reach:
        grant = Grant(CHAT, reach)
        capability = late.capability(grant, key)
        assert late.opened_capability(capability, "x") == grant
        assert links_with({"k": "main"}, end).opened_capability(capability, "x") is None
        assert links_with({"k": "main"}, end).opened_capability(late.capability(grant), "x") == grant


def test_the_capability_of_a_page_lasts_hours_and_that_of_the_viewers_pictures_a_day():
    made, later = links_with({"k": "main"}), links_with({"k": "main"}, NOW + FRAME_SECONDS)
    for reach in Reach:
        opened = later.opened_capability(made.capability(Grant(CHAT, reach)), "x")
        assert (opened is not None) is (reach is Reach.PICTURES)
