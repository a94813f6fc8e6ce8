"""Pictures of browsers for the replay: what is kept, for how long, and when they are taken."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pytest

from cubicle.browser import cdp, chromium
from cubicle.browser.cdp import CdpEvent
from cubicle.browser.frame_file import MAX_PICTURE, BadFrame, FrameName, facts_of, pack, shown_url, unpack_facts
from cubicle.browser.frame_recorder import FrameRecorder, Taken, oldest_entry, read_frame, take_frame
from cubicle.browser.frame_store import FrameStore, remove_frames
from cubicle.browser.server_messages import TabRecord
from cubicle.core.chat import Chat
from cubicle.journal import reading
from cubicle.journal.journal import Journal
from cubicle.machine.machine import Machine

CHAT, OTHER = Chat("one"), Chat("other")
JPEG = b"\xff\xd8\xff\xe0" + b"x" * 3000
FACTS = facts_of(1280, 800, "https://example.org/a?token=secret#part", "A page")
NOW = 1_800_000_000.0
BLOCK = 4096


def store_in(folder: Path, *, limit: int = 100 * BLOCK, total: int = 1000 * BLOCK) -> FrameStore:
    store = FrameStore(folder / "frames", limit=limit, total=total)
    store.open()
    for chat in (CHAT, OTHER):
        store.admit(chat)
    return store


def fill(store: FrameStore, chat: Chat, count: int, start: float = NOW) -> None:
    store.admit(chat)
    for n in range(count):
        assert store.add(chat, start + n, FACTS, JPEG + bytes([n % 256])) is not None


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://user:pass@example.org:8443/a/b?token=1#x", "https://example.org:8443/a/b"),
        ("http://[::1]:80/", "http://[::1]:80/"),
        ("about:blank", "about:blank"),
        ("file:///home/assistant/x.html", "file:///home/assistant/x.html"),
        ("data:text/html,<script>secret</script>", "data:"),
        ("javascript:alert(1)", "javascript:"),
        ("http://[", ""),
        ("", ""),
        ("http://host:99999/", ""),
        ("https://e.org/\x1b[31m\n\u202e", "https://e.org/ [31m"),
    ],
)
def test_of_an_address_only_the_place_is_kept(url: str, kept: str) -> None:
    assert shown_url(url) == kept


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    name = store.add(CHAT, NOW, FACTS, JPEG)
    assert name is not None
    again = store_in(tmp_path)
    (kept,) = again.listed(CHAT)
    assert kept.name == name == again.newest(CHAT) == FrameName.of_id(name.id)
    assert (kept.facts.url, kept.facts.title, kept.facts.width) == ("https://example.org/a", "A page", 1280)
    assert again.picture(CHAT, name) == JPEG
    assert again.listed(OTHER) == []
    assert again.picture(OTHER, name) is None
    assert again.listed(CHAT, since=NOW) == []
    path = tmp_path / "frames" / CHAT.digest / str(name)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("picture", [b"", b"<html>", b"\x89PNG", b"\xff\xd8\xff" + b"x" * MAX_PICTURE])
def test_what_is_no_picture_is_not_kept(tmp_path: Path, picture: bytes) -> None:
    store = store_in(tmp_path)
    assert store.add(CHAT, NOW, FACTS, picture) is None
    assert not (tmp_path / "frames" / CHAT.digest).exists()
    with pytest.raises(BadFrame):
        pack(NOW, FACTS, picture)


@pytest.mark.parametrize("id", ["..", "1", "../../link-secret", "1800000000000-" + "A" * 32, "x" * 50_000])
def test_a_name_that_is_none_opens_nothing(id: str) -> None:
    assert FrameName.of_id(id) is None


@pytest.mark.parametrize("start", [b"", b"{}", b"[]\n", b'{"w":1e999}\n', b'{"w":"\\ud800","url":7}\n', b"\xff\n"])
def test_a_damaged_line_is_an_error_or_data(start: bytes) -> None:
    with contextlib.suppress(BadFrame):
        assert unpack_facts(start).width == 1


def test_a_changed_or_cut_file_is_no_picture(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    name = store.add(CHAT, NOW, FACTS, JPEG)
    assert name is not None
    path = tmp_path / "frames" / CHAT.digest / str(name)
    path.write_bytes(path.read_bytes()[:-1])
    assert store.picture(CHAT, name) is None
    path.write_bytes(b"")
    assert store.listed(CHAT) == []


def test_a_chat_keeps_no_more_than_its_bound_and_the_newest(tmp_path: Path) -> None:
    store = store_in(tmp_path, limit=20 * BLOCK)
    fill(store, CHAT, 100)
    kept = [frame.name.at for frame in store.listed(CHAT)]
    assert 10 < len(kept) <= 20
    assert kept == sorted(kept)
    assert kept[-1] == int(NOW + 99) * 1000
    assert len(os.listdir(tmp_path / "frames" / CHAT.digest)) == len(kept)


def test_the_bound_holds_for_a_chat_that_another_process_had_meanwhile(tmp_path: Path) -> None:
    first, second = (store_in(tmp_path, limit=10 * BLOCK) for _ in range(2))
    fill(first, CHAT, 2)
    fill(second, CHAT, 9, start=NOW + 10)
    fill(first, CHAT, 4, start=NOW + 20)
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "frames" / CHAT.digest).iterdir()) <= 10 * BLOCK


def test_all_chats_together_keep_no_more_than_the_total(tmp_path: Path) -> None:
    store = store_in(tmp_path, limit=20 * BLOCK, total=30 * BLOCK)
    for n in range(10):
        fill(store, Chat(f"chat-{n}"), 6)
    files = list((tmp_path / "frames").rglob("*.frame"))
    assert len(files) <= 30
    assert store.listed(Chat("chat-9"))
    smaller = store_in(tmp_path, limit=20 * BLOCK, total=5 * BLOCK)
    assert len(list((tmp_path / "frames").rglob("*.frame"))) <= 5
    assert smaller.keeps


def test_with_no_room_nothing_is_kept(tmp_path: Path) -> None:
    store = store_in(tmp_path, limit=0)
    assert not store.keeps
    assert store.add(CHAT, NOW, FACTS, JPEG) is None
    assert not (tmp_path / "frames").exists()


def test_a_disk_that_refuses_is_no_failure(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    (tmp_path / "frames" / CHAT.digest).write_bytes(b"a file in the way")
    assert store.add(CHAT, NOW, FACTS, JPEG) is None
    (tmp_path / "frames" / CHAT.digest).unlink()
    assert store.add(CHAT, NOW, FACTS, JPEG) is not None


def test_a_removed_chat_leaves_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    fill(store, CHAT, 3)
    fill(store, OTHER, 3)
    store.forget(CHAT)
    assert not (tmp_path / "frames" / CHAT.digest).exists()
    assert len(store.listed(OTHER)) == 3
    assert store.add(CHAT, NOW, FACTS, JPEG) is None  # taken before, and kept too late
    assert not (tmp_path / "frames" / CHAT.digest).exists()
    remove_frames(tmp_path / "frames", "../frames")
    remove_frames(tmp_path / "frames", OTHER.digest)
    assert os.listdir(tmp_path / "frames") == []


def test_what_was_being_written_at_the_end_of_a_service_goes(tmp_path: Path) -> None:
    fill(store_in(tmp_path), CHAT, 1)
    (tmp_path / "frames" / CHAT.digest / "1800000000001-x.frame.new").write_bytes(b"half")
    store_in(tmp_path)
    assert len(os.listdir(tmp_path / "frames" / CHAT.digest)) == 1


async def test_pictures_go_with_the_entries_beside_which_they_stand(tmp_path: Path) -> None:
    async with Journal(tmp_path / "journal", limit=10**6) as journal:
        journal.record(CHAT, "upload", {"path": "a", "size": 1})
        await journal.settle(CHAT)
    await asyncio.to_thread(check_sweep, tmp_path)


def check_sweep(folder: Path) -> None:
    began = oldest_entry(folder / "journal" / CHAT.digest)
    assert began is not None
    store = store_in(folder)
    fill(store, CHAT, 3, began - 100)
    fill(store, CHAT, 3, began + 1)
    fill(store, OTHER, 3)
    store.sweep(lambda digest: oldest_entry(folder / "journal" / digest))
    assert [frame.name.at > began * 1000 for frame in store.listed(CHAT)] == [True] * 3
    assert store.listed(OTHER) == []


@pytest.mark.parametrize("asked", ["segments", "first_line"])
async def test_pictures_stay_when_the_journal_beside_them_cannot_be_read_now(tmp_path: Path, asked: str) -> None:
    """Too many files are open, or the disk fails: that is no word of what the journal has."""
    async with Journal(tmp_path / "journal", limit=10**6) as journal:
        for chat in (CHAT, OTHER):
            journal.record(chat, "upload", {"path": "a", "size": 1})
            await journal.settle(chat)
    await asyncio.to_thread(check_unread, tmp_path, asked)


def check_unread(folder: Path, asked: str) -> None:
    store, look = store_in(folder), getattr(reading, asked)
    fill(store, CHAT, 3)
    fill(store, OTHER, 3, NOW - 10**9)

    def fails(path: Path) -> object:
        if CHAT.digest in str(path):
            raise OSError(errno.EMFILE, "too many open files")
        return look(path)

    with patch.object(reading, asked, fails):
        store.sweep(lambda digest: oldest_entry(folder / "journal" / digest))
    assert len(store.listed(CHAT)) == 3
    assert store.listed(OTHER) == [], "those of others are looked at all the same"


async def kept(store: FrameStore) -> int:
    return len(await asyncio.to_thread(store.listed, CHAT))


class Screen:
    """A browser, as far as the recorder sees it."""

    def __init__(self) -> None:
        self.picture: bytes | None = None
        self.facts = FACTS
        self.looks = 0
        self.looked = asyncio.Event()

    async def take(self, machine: Machine) -> Taken | None:
        self.looks += 1
        self.looked.set()
        return None if self.picture is None else (self.facts, self.picture)

    async def seen(self, times: int = 2) -> None:
        """The recorder has looked so often from now on."""
        for _ in range(times):
            self.looked.clear()
            await self.looked.wait()


class Named:
    name = "s"


async def test_a_picture_is_taken_when_something_changes_and_only_in_use(tmp_path: Path) -> None:
    screen, store = Screen(), store_in(tmp_path)
    recorder = FrameRecorder(store, tmp_path, every=0.005, take=screen.take)
    async with asyncio.timeout(30), recorder.attached(CHAT, cast(Machine, Named())):
        screen.picture = JPEG
        await asyncio.sleep(0.1)  # nobody uses it: there is no event to wait for
        assert screen.looks == 0
        recorder.in_use = lambda chat: chat == CHAT
        await screen.seen(3)
        assert await kept(store) == 1
        screen.picture = JPEG + b"2"
        await screen.seen(3)
        assert await kept(store) == 2
        recorder.is_driven = lambda chat: chat == CHAT
        screen.picture = JPEG + b"a password"
        looks = screen.looks
        await asyncio.sleep(0.1)
        assert screen.looks <= looks + 1
        assert await kept(store) == 2
        screen.picture = JPEG + b"3"
        recorder.is_driven = lambda chat: False
        await screen.seen(3)
        assert await kept(store) == 3
    looks = screen.looks
    await asyncio.sleep(0.05)
    assert screen.looks == looks


async def test_a_title_that_comes_after_the_picture_is_kept(tmp_path: Path) -> None:
    screen, store = Screen(), store_in(tmp_path)
    recorder = FrameRecorder(store, tmp_path, every=0.005, take=screen.take)
    recorder.in_use = lambda chat: True
    address = "http://e.org/a?token=secret%20one"
    screen.picture, screen.facts = JPEG, facts_of(1280, 800, address, "e.org/a?token=secret one")
    async with asyncio.timeout(30), recorder.attached(CHAT, cast(Machine, Named())):
        await screen.seen(3)
        screen.facts = facts_of(1280, 800, address, "Shop")
        await screen.seen(3)
        screen.facts = facts_of(1280, 800, address, "Shop (1)")  # a title that ticks makes no pictures
        await screen.seen(3)
    frames = await asyncio.to_thread(store.listed, CHAT)
    assert [frame.facts.title for frame in frames] == ["", "Shop"]


@pytest.mark.parametrize(
    ("url", "title", "kept"),
    [
        ("https://e.org/a?key=1", "https://e.org/a?key=1", ""),
        ("https://e.org/a?key=1", "e.org/a?key=1", ""),
        ("file:///home/a.html?t=%C3%BC", "a.html?t=ü", ""),
        ("file:///home/a.html", "a.html", ""),
        ("about:blank", "about:blank", ""),
        ("file:///home/Red.html?t=1", "Red", "Red"),
        ("https://e.org/news?token=red", "red", "red"),
        ("https://e.org/", "A shop", "A shop"),
        ("https://e.org/", "", ""),
    ],
)
def test_an_address_in_the_place_of_a_title_is_not_kept(url: str, title: str, kept: str) -> None:
    assert facts_of(1, 1, url, title).title == kept


async def test_a_take_over_in_the_middle_of_a_picture_keeps_it_out(tmp_path: Path) -> None:
    store, screen = store_in(tmp_path), Screen()
    driven = False

    async def take(machine: Machine) -> Taken | None:
        nonlocal driven
        driven = True
        return await screen.take(machine)

    screen.picture = JPEG
    recorder = FrameRecorder(store, tmp_path, every=0.005, take=take)
    recorder.in_use, recorder.is_driven = lambda chat: True, lambda chat: driven
    async with asyncio.timeout(30), recorder.attached(CHAT, cast(Machine, Named())):
        await screen.seen(1)
        await asyncio.sleep(0.05)
    assert await kept(store) == 0


async def test_without_room_nobody_looks(tmp_path: Path) -> None:
    screen = Screen()
    recorder = FrameRecorder(store_in(tmp_path, limit=0), tmp_path, every=0.001, take=screen.take)
    recorder.in_use = lambda chat: True
    async with recorder.attached(CHAT, cast(Machine, Named())):
        await asyncio.sleep(0.05)
    assert screen.looks == 0


@pytest.mark.parametrize(
    "params",
    [{}, {"data": 7}, {"data": "!"}, {"data": "é"}, {"data": "A" * (2 * MAX_PICTURE)}],
)
def test_a_hostile_frame_is_none(params: dict[str, object]) -> None:
    assert read_frame(params, "", "") is None


def test_hostile_numbers_of_a_frame_are_bounded() -> None:
    taken = read_frame({"data": "/9j/", "metadata": {"deviceWidth": -1, "deviceHeight": 1e300}}, "u", "t\n\x1b")
    assert taken is not None
    assert (taken[0].width, taken[0].height, taken[0].title) == (1, 20_000, "t")


class Tabs:
    """DevTools of a browser with some pages, of which each gives a frame as soon as it is asked."""

    def __init__(self, on_event: Callable[[CdpEvent], None], front: str) -> None:
        self._on_event, self._front = on_event, front

    async def call(self, method: str, *, targetId: str, flatten: bool) -> dict[str, object]:
        return {"sessionId": targetId}

    def tell(self, method: str, session: str, **params: object) -> None:
        if method == "Page.startScreencast":
            visible = {"visible": session == self._front}
            self._on_event(CdpEvent(session, "Page.screencastVisibilityChanged", visible))
            self._on_event(CdpEvent(session, "Page.screencastFrame", {"data": "/9j/"}))


@pytest.mark.parametrize("front", ["a", "b", "c"])
async def test_the_picture_is_of_the_page_in_front_though_others_give_one_too(front: str) -> None:
    @contextlib.asynccontextmanager
    async def attached(machine: Machine, on_event: Callable[[CdpEvent], None]) -> AsyncIterator[Tabs]:
        yield Tabs(on_event, front)

    async def pages(machine: Machine) -> list[TabRecord]:
        return [{"id": id, "title": id, "url": f"https://{id}.example/"} for id in "abc"]

    with patch.object(cdp, "attached", attached), patch.object(chromium, "pages", pages):
        taken = await take_frame(cast(Machine, Named()))
    assert taken is not None
    assert taken[0].title == front
