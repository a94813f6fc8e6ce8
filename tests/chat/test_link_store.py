"""Links that are made and revoked, beside another process that does the same."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cubicle import record
from cubicle.chat.link_store import MAX_LINKS, ChatLinks, LinkStore, TooManyLinks
from cubicle.core.chat import Chat
from cubicle.core.identity import LinkAccess
from cubicle.core.signing import Mark

CHAT = Chat("room", "acme")
NOW = 1_800_000_000


def store(folder: Path) -> LinkStore:
    made = LinkStore(folder, clock=lambda: NOW)
    made.open()
    return made


def test_a_link_holds_until_it_is_revoked_also_after_a_restart(tmp_path: Path) -> None:
    links = store(tmp_path)
    one, two = (links.add(CHAT, LinkAccess.VIEW, label, NOW + 60) for label in ("ann", "bob"))
    assert links.holds(CHAT, links.mark(CHAT, one.id))
    assert links.revoke(CHAT, one.id)
    assert not links.revoke(CHAT, one.id)
    again = store(tmp_path)
    assert [link.label for link in again.of(CHAT).links] == ["bob"]
    assert not again.holds(CHAT, Mark(0, one.id))
    assert again.holds(CHAT, Mark(0, two.id))
    assert not again.holds(Chat("room", "rival"), Mark(0, two.id))


def test_all_links_of_a_chat_end_together_and_new_ones_work(tmp_path: Path) -> None:
    links = store(tmp_path)
    before = links.mark(CHAT)
    one = links.add(CHAT, LinkAccess.CONTROL, "", NOW + 60)
    links.revoke_all(CHAT)
    links.revoke_all(CHAT)
    for known in (links, store(tmp_path)):
        assert not known.holds(CHAT, before)
        assert not known.holds(CHAT, Mark(known.of(CHAT).epoch, one.id))
        assert known.holds(CHAT, known.mark(CHAT))
        assert known.holds(Chat("other", "acme"), before)


async def test_what_another_process_revokes_is_seen(tmp_path: Path) -> None:
    service, command_line = [await asyncio.to_thread(store, tmp_path) for _ in range(2)]
    made = await asyncio.to_thread(command_line.add, CHAT, LinkAccess.VIEW, "", NOW + 60)
    await service.look()
    assert service.holds(CHAT, Mark(0, made.id))
    version = service.version
    await asyncio.to_thread(command_line.revoke, CHAT, made.id)
    await service.look()
    assert not service.holds(CHAT, Mark(0, made.id))
    assert service.version != version


async def test_what_another_process_revokes_is_seen_though_this_one_makes_a_link_meanwhile(tmp_path: Path) -> None:
    service, command_line = [await asyncio.to_thread(store, tmp_path) for _ in range(2)]
    made = await asyncio.to_thread(command_line.add, CHAT, LinkAccess.VIEW, "", NOW + 60)
    await service.look()
    await asyncio.to_thread(command_line.revoke, CHAT, made.id)
    await asyncio.to_thread(service.add, Chat("another", "acme"), LinkAccess.VIEW, "", NOW + 60)
    await service.look()
    assert not service.holds(CHAT, Mark(0, made.id))


async def test_what_is_revoked_while_the_records_are_read_again_stays_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, command_line = [await asyncio.to_thread(store, tmp_path) for _ in range(2)]
    made = await asyncio.to_thread(service.add, CHAT, LinkAccess.VIEW, "", NOW + 60)
    await asyncio.to_thread(command_line.add, Chat("another", "acme"), LinkAccess.VIEW, "", NOW + 60)
    read, was_read, may_go_on = service._read, threading.Event(), threading.Event()

    def read_slowly(path: Path) -> ChatLinks | None:
        found = read(path)
        if not was_read.is_set() and path.stem == CHAT.digest:
            was_read.set()
            may_go_on.wait(60)
        return found

    monkeypatch.setattr(service, "_read", read_slowly)
    looking = asyncio.create_task(service.look())
    await asyncio.to_thread(was_read.wait, 60)
    revoking = asyncio.create_task(asyncio.to_thread(service.revoke, CHAT, made.id))
    await asyncio.wait([revoking], timeout=0.2)
    may_go_on.set()
    await looking
    assert await revoking
    assert not service.holds(CHAT, Mark(0, made.id))


def test_two_who_write_at_once_lose_nothing(tmp_path: Path) -> None:
    stores = [store(tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: stores[n % 4].add(CHAT, LinkAccess.VIEW, str(n), NOW + 60), range(24)))
    assert {link.label for link in store(tmp_path).of(CHAT).links} == {str(n) for n in range(24)}


def test_a_chat_has_a_bounded_number_of_links_and_expired_ones_make_room(tmp_path: Path) -> None:
    links = store(tmp_path)
    for number in range(MAX_LINKS):
        links.add(CHAT, LinkAccess.VIEW, "", NOW + (0 if number == 0 else 60))
    links.add(CHAT, LinkAccess.VIEW, "", NOW + 60)
    with pytest.raises(TooManyLinks):
        links.add(CHAT, LinkAccess.VIEW, "", NOW + 60)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"epoch": "x", "links": []}', b'{"epoch": 0, "links": 5}', b"\xff"]
)
def test_of_a_damaged_record_all_links_end_and_it_is_kept(tmp_path: Path, content: bytes) -> None:
    links = store(tmp_path)
    made = links.add(CHAT, LinkAccess.VIEW, "", NOW + 60)
    (tmp_path / f"{CHAT.digest}.json").write_bytes(content)
    again = store(tmp_path)
    assert not again.holds(CHAT, Mark())
    assert not again.holds(CHAT, Mark(0, made.id))
    assert again.holds(CHAT, again.mark(CHAT))
    assert [path.read_bytes() for path in tmp_path.glob("*.bad-*")] == [content]
    assert store(tmp_path).holds(CHAT, again.mark(CHAT)), "links made since then live on"


def test_of_a_removed_chat_only_stays_that_its_links_were_revoked(tmp_path: Path) -> None:
    links = store(tmp_path)
    links.add(CHAT, LinkAccess.VIEW, "", NOW + 60)
    asyncio.run(links.forget(CHAT))
    assert not list(tmp_path.glob("*.json"))
    before = links.mark(CHAT)
    links.revoke_all(CHAT)
    asyncio.run(links.forget(CHAT))
    (kept,) = tmp_path.glob("*.json")
    assert "room" not in kept.read_text()
    assert not store(tmp_path).holds(CHAT, before)


def test_a_link_of_another_process_goes_with_its_chat_before_it_was_looked_at(tmp_path: Path) -> None:
    links = store(tmp_path)
    store(tmp_path).add(CHAT, LinkAccess.VIEW, "", NOW + 60)
    asyncio.run(links.forget(CHAT))
    assert not list(tmp_path.glob("*.json"))


def test_a_one_time_token_is_used_once_whoever_comes_at_the_same_time(tmp_path: Path) -> None:
    links = store(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: links.use_once("a" * 32, NOW + 60), range(32))) == 1
    assert not store(tmp_path).use_once("a" * 32, NOW + 60)
    assert links.use_once("b" * 32, NOW - 200_000)
    assert links.use_once("c" * 32, NOW + 60)
    assert sorted(path.name[0] for path in (tmp_path / "used").iterdir()) == ["a", "c"]


def test_links_of_a_removed_chat_go_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = store(tmp_path)
    made = links.add(CHAT, LinkAccess.VIEW, "", NOW + 60)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record, "write", full)
    links.drop(CHAT.digest)
    assert not links.holds(CHAT, Mark(0, made.id))
    assert not store(tmp_path).holds(CHAT, Mark(0, made.id))


def test_a_chat_without_links_leaves_no_file_behind_when_it_is_removed(tmp_path: Path) -> None:
    store(tmp_path).drop(CHAT.digest)
    assert list(tmp_path.iterdir()) == []
