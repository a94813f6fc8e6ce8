"""Archives of strangers: what is no archive of ours is refused before anything is written, in bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cubicle.backup.archive_file import ArchiveReader, ArchiveWriter, Member, new_file
from cubicle.backup.archive_names import BadArchive, Place, chat_name, place_of
from cubicle.backup.chats import read_through
from cubicle.core.chat import Chat

CHAT = Chat("one")
MAX = 10**9


def member(name: str, size: int, **more: Any) -> Member:
    return Member(Place(), name, more.pop("kind", "file"), size, **more)


def archive(fill: Callable[[ArchiveWriter], None] = lambda writer: None, kind: str = "chat") -> io.BytesIO:
    output = io.BytesIO()
    writer = ArchiveWriter(output, kind)
    writer.add_record(chat_name(CHAT.digest, "chat.json"), {"chat": CHAT.id, "tenant": CHAT.tenant})
    fill(writer)
    writer.finish()
    writer.close()
    return output


def read(file: io.BytesIO) -> dict[str, bytes]:
    reader = ArchiveReader(file, MAX)
    return {each.name: b"".join(reader.content()) for each in reader}


def in_home(path: str) -> str:
    return chat_name(CHAT.digest, "home", path)


def test_what_is_written_is_read() -> None:
    odd = os.fsdecode(b"caf\xe9 \n\xff")

    def fill(writer: ArchiveWriter) -> None:
        writer.add(member(in_home("a/b.txt"), 6), [b"abc", b"def"])
        writer.add(member(in_home(odd), 0))
        writer.add(member(in_home("x" * 200 + "/" + "y" * 200), 1), [b"z"])
        writer.add(member(in_home("a"), 0, kind="directory", mode=0o755))
        writer.add(member(in_home("link"), 0, kind="link", target="/usr/bin/python3"))

    found = read(archive(fill))
    assert found[in_home("a/b.txt")] == b"abcdef"
    assert found[in_home("x" * 200 + "/" + "y" * 200)] == b"z"
    assert in_home(odd) in found
    assert in_home("link") in found


@pytest.mark.parametrize(
    "name",
    [
        "../out", "/etc/passwd", "data/../../out", "data", "chats/zz/home/x", "chats/../home", "other", "",
        f"chats/{CHAT.digest}/home/../../x", f"chats/{CHAT.digest}/home//x", f"chats/{CHAT.digest}/etc/x", "./cubicle.json",
        f"chats/{CHAT.digest}/journal/../x", f"chats/{CHAT.digest}/journal/x.sh", "data/" + "a/" * 300 + "b", "data/" + "x" * 5000,
        f"chats/{CHAT.digest}/home/a\0b",
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(BadArchive):
        place_of(name)


def hostile(*infos: tuple[tarfile.TarInfo, bytes], prefix: bool = True) -> io.BytesIO:
    """A tar that nobody of us wrote, with a good beginning."""
    output = io.BytesIO()
    with gzip.GzipFile(fileobj=output, mode="wb") as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        header = {"format": "cubicle-archive", "version": 1, "kind": "chat"}
        record = {"chat": CHAT.id, "tenant": CHAT.tenant}
        start = [("cubicle.json", header), (chat_name(CHAT.digest, "chat.json"), record)] if prefix else []
        for name, fields in start:
            content = json.dumps(fields).encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info, content in infos:
            tar.addfile(info, io.BytesIO(content) if content else None)
    return output


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, target: str = "", pax: dict[str, str] | None = None
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.pax_headers = kind, size, target, pax or {}
    return info


@pytest.mark.parametrize(
    "infos",
    [
        pytest.param([(entry("../../etc/cron.d/x", size=1), b"x")], id="zip slip"),
        pytest.param([(entry("/etc/cron.d/x", size=1), b"x")], id="absolute"),
        pytest.param(
            [(entry(in_home("a"), tarfile.SYMTYPE, target="/etc"), b""), (entry(in_home("a/passwd"), size=1), b"x")],
            id="through a symlink",
        ),
        pytest.param([(entry("data/x", tarfile.SYMTYPE, target="/etc/shadow"), b"")], id="symlink in DATA_DIR"),
        pytest.param(
            [(entry(chat_name(CHAT.digest, "uploads", "x"), tarfile.SYMTYPE, target="/etc"), b"")],
            id="symlink in uploads",
        ),
        pytest.param([(entry(in_home("x"), tarfile.LNKTYPE, target="/etc/shadow"), b"")], id="hard link"),
        pytest.param([(entry(in_home("x"), tarfile.CHRTYPE), b"")], id="device"),
        pytest.param([(entry(in_home("x"), tarfile.FIFOTYPE), b"")], id="fifo"),
        pytest.param([(entry(in_home("x"), size=1, pax={"GNU.sparse.size": "999999999999"}), b"x")], id="sparse"),
        pytest.param([(entry(in_home("x"), size=1, pax={"comment": "y" * 10**6}), b"x")], id="long header"),
        pytest.param([(entry(in_home("x"), size=5), b"12345")], id="no checksums"),
        pytest.param([(entry("SHA256SUMS", size=5), b"12345")], id="wrong checksums"),
        pytest.param([(entry(chat_name("0" * 32, "home", "x"), size=1), b"x")], id="of no chat"),
    ],
)
def test_what_an_archive_never_holds_is_refused(infos: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with pytest.raises(BadArchive):
        read_through(hostile(*infos), MAX)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not gzip", id="text"),
        pytest.param(gzip.compress(b""), id="empty gzip"),
        pytest.param(gzip.compress(b"no tar" * 1000), id="no tar"),
        pytest.param(gzip.compress(bytes(10_240)), id="empty tar"),
        pytest.param(b"PK\x03\x04", id="zip"),
    ],
)
def test_what_is_no_archive_is_said_to_be_none(content: bytes) -> None:
    with pytest.raises(BadArchive):
        read_through(io.BytesIO(content), MAX)


def test_sixty_megabytes_of_brackets_are_refused_at_once() -> None:
    brackets = b"[" * 60_000_000
    with pytest.raises(BadArchive, match="record"):
        read_through(hostile((entry("cubicle.json", size=len(brackets)), brackets), prefix=False), MAX)
    deep = b"[" * 60_000
    with pytest.raises(BadArchive):
        read_through(hostile((entry("cubicle.json", size=len(deep)), deep), prefix=False), MAX)


def test_a_bomb_is_refused_by_what_it_says_and_not_by_what_it_does() -> None:
    """A terabyte of zeros is 1 GB by gzip; its header alone says what it will be."""
    bomb = entry(in_home("x"), size=2**40)
    output = io.BytesIO()
    with gzip.GzipFile(fileobj=output, mode="wb") as zipped:
        zipped.write(gzip.decompress(hostile().getvalue())[:-10240].rstrip(b"\0").ljust(2048, b"\0")[:2048])
        zipped.write(bomb.tobuf())
        for _ in range(500):
            zipped.write(bytes(1 << 16))
    with pytest.raises(BadArchive, match=r"more than|damaged|early"):
        read_through(output, 10**9)


def test_one_changed_byte_anywhere_is_found() -> None:
    good = archive(lambda writer: writer.add(member(in_home("a"), 4000), [os.urandom(4000)])).getvalue()
    assert read_through(io.BytesIO(good), MAX).kind == "chat"
    for place in range(10, len(good), max(1, len(good) // 200)):
        bad = good[:place] + bytes([good[place] ^ 0x20]) + good[place + 1 :]
        try:
            read_through(io.BytesIO(bad), MAX)
        except BadArchive:
            continue
        assert gzip.decompress(bad) == gzip.decompress(good)  # a run of zeros can be written in many ways
    for cut in range(0, len(good), 97):
        with pytest.raises(BadArchive):
            read_through(io.BytesIO(good[:cut]), MAX)


def test_a_member_that_was_left_out_or_swapped_is_found() -> None:
    """By somebody who knows gzip and tar, and not the checksums."""

    def fill(writer: ArchiveWriter) -> None:
        writer.add(member(in_home("a"), 1), [b"a"])
        writer.add(member(in_home("b"), 1), [b"b"])

    with gzip.open(io.BytesIO(archive(fill).getvalue())) as zipped, tarfile.open(fileobj=zipped) as tar:
        members = [(info, (tar.extractfile(info) or io.BytesIO()).read()) for info in tar.getmembers()]

    def again(members: list[tuple[tarfile.TarInfo, bytes]]) -> io.BytesIO:
        return hostile(*members, prefix=False)

    assert read_through(again(members), MAX).kind == "chat"
    for changed in (
        members[:2] + members[3:],
        [*members[:2], members[3], members[2], members[4]],
        members[:-1],
        [*members, members[2]],
    ):
        with pytest.raises(BadArchive):
            read_through(again(changed), MAX)
    mode = [(tarfile.TarInfo.frombuf(info.tobuf(), "utf-8", "surrogateescape"), data) for info, data in members]
    mode[2][0].mode = 0o777
    with pytest.raises(BadArchive):
        read_through(again(mode), MAX)


def test_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    def pieces(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield bytes(1 << 20)

    tracemalloc.start()
    try:
        with (tmp_path / "file").open("w+b") as file:
            writer = ArchiveWriter(file, "chat")
            writer.add_record(chat_name(CHAT.digest, "chat.json"), {"chat": CHAT.id, "tenant": CHAT.tenant})
            writer.add(member(in_home("large"), 40 << 20), pieces(40))
            for number in range(3_000):
                writer.add(member(in_home(f"many/{number}"), 1), [b"x"])
            writer.finish()
            writer.close()
            assert read_through(file, MAX).size > 40 << 20
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_a_file_has_its_name_when_it_is_whole_and_replaces_none(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with pytest.raises(ZeroDivisionError), new_file(path) as output:
        output.write(b"half")
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileExistsError), new_file(path) as output:
        output.write(b"slow")
        with new_file(path) as other:  # two at once
            other.write(b"fast")
    assert path.read_bytes() == b"fast"
    with pytest.raises(FileExistsError), new_file(path):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["new"]
    assert path.stat().st_mode & 0o777 == 0o600
