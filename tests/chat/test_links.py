import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from cubicle.chat.links import Links, kept_secret
from cubicle.rules.chats import Chat

CHAT = Chat("a:b@c")


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


def test_a_damaged_secret_is_named_not_used(tmp_path):
    (tmp_path / "link-secret").write_bytes(b"short")
    with pytest.raises(ValueError, match="link-secret"):
        kept_secret(tmp_path)


def test_a_link_to_a_file_is_escaped_and_carries_the_signature():
    links = Links(b"s" * 32, "https://box.example/p/", signed=True, clock=lambda: 1_800_000_000)
    address = links.file(CHAT, "sub folder/50% of ü?.txt")
    head, key = address.split("?key=")
    assert head == "https://box.example/p/files/a%3Ab%40c/sub%20folder/50%25%20of%20%C3%BC%3F.txt"
    assert links.opened("a:b@c", key) == CHAT


def test_without_an_api_key_links_carry_no_signature():
    assert Links(b"s" * 32, "http://127.0.0.1:8081", signed=False).file(CHAT, "x").endswith("/x")
