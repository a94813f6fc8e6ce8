"""What a sandbox lays in the way of the service: nothing hangs, no host file is read, the archive is still made."""

import asyncio
import io
import zipfile
from pathlib import Path
from urllib.parse import quote

import pytest

from cubicle.core.chat import Chat

CHAT = Chat("hostile")
TRAPS = r"""
cd /mnt/user-data/outputs
echo good > good.txt
ln -s /etc/passwd link-out; ln -s / link-root; ln -s good.txt link-in; ln -s loop loop; ln -s /nowhere dangling
ln -s /proc/self/environ link-proc; ln -s /run/cubicle link-guest; ln -s ~ link-home
ln good.txt hard.txt
mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
truncate -s 1T sparse.bin
python3 - <<'E'
import os
os.chdir(b"/mnt/user-data/outputs")
for name in (b"new\nline", b"bad\xff\xfeutf8", b"tab\there", b"esc\x1b[31m", b"back\\slash",
             b"..\\..\\up", b"q\"u'o`t<e>&",
             "\u202etxt.exe".encode(), b" ", b"-rf", b"%2e%2e%2fx", b"#?&=", "x".encode() * 255):
    open(name, "wb").write(b"odd")
os.makedirs(b"bad\xffdir/sub")
open(b"bad\xffdir/sub/f", "wb").write(b"in a bad folder")
deep = b"deep"
for _ in range(100):
    os.mkdir(deep); os.chdir(deep)
E
mkdir locked && echo x > locked/x && chmod 000 locked; echo no > unreadable && chmod 000 unreadable
cd ~ && mkdir -p .cache/x project/.git project/node_modules/m project/src
echo c > .cache/x/c && echo g > project/.git/g
echo m > project/node_modules/m/m && echo s > project/src/s && echo d > project/.env && mkfifo pipe
"""


@pytest.fixture(scope="module")
async def trapped(site):
    await site.client.post("/api/uploads/hostile/up.txt", content=b"up")
    await site.bash(CHAT, TRAPS)
    return site


async def limited(awaitable, seconds=60):
    async with asyncio.timeout(seconds):
        return await awaitable


@pytest.mark.parametrize(
    "name",
    ["link-out", "link-root/etc/passwd", "loop", "dangling", "link-proc", "link-guest", "fifo", "socket", "unreadable"],
)
async def test_what_is_no_file_of_the_chat_is_not_there(trapped, name):
    answer = await limited(trapped.client.get(f"/files/hostile/{name}"))
    assert answer.status_code == 404
    assert b"root:" not in answer.content


async def test_a_link_inside_the_chat_works(trapped):
    assert (await trapped.client.get("/files/hostile/link-in")).content == b"good\n"


async def test_every_name_is_listed_and_opens_by_its_url(trapped):
    entries = (await limited(trapped.client.get("/files/hostile/?hidden=1"))).json()["entries"]
    odd = [e for e in entries if e["kind"] == "file" and e["size"] == 3 and e["name"] not in ("unreadable",)]
    assert len(odd) == 13
    for entry in odd:
        answer = await trapped.client.get(entry["url"].removeprefix("https://box.example/base"))
        assert answer.content == b"odd", entry
        disposition = answer.headers["content-disposition"]
        assert disposition.isprintable()
        assert disposition.count('"') == 2
    assert {e["kind"] for e in entries} == {"file", "directory", "symlink", "other"}


async def test_a_huge_sparse_file_is_a_stream_that_can_be_left(trapped):
    async with trapped.client.stream("GET", "/files/hostile/sparse.bin") as answer:
        assert answer.headers["content-length"] == str(1024**4)
        async for chunk in answer.aiter_raw():
            assert set(chunk) == {0}
            break
    async with asyncio.timeout(60):
        while trapped.fleet.state(CHAT).leases:
            await asyncio.sleep(0.05)
    part = await trapped.client.get("/files/hostile/sparse.bin", headers={"Range": "bytes=999999999-1000000008"})
    assert part.content == bytes(10)


async def test_the_archive_holds_what_is_good_and_says_what_is_not(trapped):
    answer = await limited(trapped.client.get("/files/hostile/archive"), 100)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/zip"
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert archive.testzip() is None
    names = archive.namelist()
    assert len(names) == len(set(names))
    assert {"outputs/good.txt", "outputs/hard.txt", "uploads/up.txt", "workspace/project/src/s"} <= set(names)
    assert "workspace/project/.env" in names
    for start in ("outputs/new_line~", "outputs/bad\ufffddir/sub/f~"):
        assert sum(name.startswith(start) for name in names) == 1
    assert archive.read("outputs/good.txt") == b"good\n"
    for name in names:
        assert not any(
            part in name for part in ("link-", "fifo", "socket", "sparse", "node_modules", ".git/", ".cache")
        )
        assert name.isprintable()
        assert "\\" not in name
        assert ".." not in Path(name).parts
    assert b"root:x:0" not in b"".join(archive.read(name) for name in names)
    note = archive.read("left-out.txt").decode()
    assert "outputs/sparse.bin: it is mostly empty space" in note
    assert "outputs/unreadable: it cannot be read" in note
    for name in ("link-in", "link-out", "link-root", "loop", "dangling"):
        assert f"\noutputs/{name}: it is a link\n" in note
    assert "outputs/fifo: it is not a plain file" in note
    assert "\noutputs/locked: it cannot be read\n" in note
    assert "\noutputs/" + "/".join(["deep"] * 65) + ": it lies more than 64 folders deep\n" in note


async def test_empty_folders_and_programs_are_in_the_archive(site):
    chat = Chat("shape")
    await site.bash(
        chat,
        """cd /mnt/user-data/outputs && mkdir -p a/empty 'odd?' full && echo 1 > full/run && chmod 700 full/run
        echo 2 > full/text && mkdir -p ~/project/.git ~/.cache && touch -d '2024-05-06 07:08:10 UTC' a/empty""",
    )
    archive = zipfile.ZipFile(io.BytesIO((await site.client.get("/files/shape/archive")).content))
    assert archive.testzip() is None
    folders = [info for info in archive.infolist() if info.is_dir()]
    assert [info.filename.partition("~")[0] for info in folders] == [
        "outputs/a/empty/",
        "outputs/odd_",
        "workspace/project/",
    ]
    assert folders[0].date_time == (2024, 5, 6, 7, 8, 10)
    modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert (modes["outputs/full/run"], modes["outputs/full/text"]) == (0o755, 0o644)
    assert set(modes) == {info.filename for info in folders} | {"outputs/full/run", "outputs/full/text"}


async def test_a_root_that_cannot_be_read_is_said_to_be_left_out(site):
    await site.bash(Chat("shut"), "echo 1 > ~/here; chmod 111 /mnt/user-data/outputs")
    archive = zipfile.ZipFile(io.BytesIO((await site.client.get("/files/shut/archive")).content))
    assert archive.namelist() == ["workspace/here", "left-out.txt"]
    assert b"\noutputs: it cannot be read\n" in archive.read("left-out.txt")


async def test_names_that_would_be_the_same_in_the_archive_stay_apart(site):
    chat = Chat("alike")
    files = {"a?b.txt": "one", "a*b.txt": "two", "a_b.txt": "three", ".a|b": "four", "a:b": "five"}
    for name, text in files.items():
        await site.bash(chat, f"printf {text} > '/mnt/user-data/outputs/{name}'")
    answer = await site.client.get("/files/alike/archive")
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    found = {name: archive.read(name).decode() for name in archive.namelist() if name.startswith("outputs/")}
    assert sorted(found.values()) == sorted(files.values())
    assert found["outputs/a_b.txt"] == "three"
    assert sum(name.startswith("outputs/a_b~") and name.endswith(".txt") for name in found) == 2


async def test_ordinary_names_of_all_languages_are_the_same_in_the_archive(site):
    names = ["6.45.00\u202fPM.png", "日本\u3000語.txt", "👨\u200d👩\u200d👧.png", "می\u200cخواهم.txt"]
    for name in names:
        assert (await site.client.post(f"/api/uploads/languages/{quote(name)}", content=b"1")).status_code == 201
    answer = await site.client.get("/files/languages/archive")
    archived = zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
    assert sorted(archived) == sorted(f"uploads/{name}" for name in names)


async def test_times_in_the_archive_are_those_of_the_files(site):
    chat = Chat("dated")
    days = "2024-05-06 1969-01-01 2077-01-01"
    await site.bash(chat, f'cd /mnt/user-data/outputs; for d in {days}; do touch -d "$d 07:08:10 UTC" $d; done')
    answer = await site.client.get("/files/dated/archive")
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert archive.getinfo("outputs/2024-05-06").date_time == (2024, 5, 6, 7, 8, 10)
    assert archive.getinfo("outputs/1969-01-01").date_time[0] == 1980
    assert archive.getinfo("outputs/2077-01-01").date_time[0] == 2038
    assert "attachment" in answer.headers["content-disposition"]


async def test_an_archive_that_nobody_waits_for_is_given_up(site):
    chat = Chat("left")
    await site.bash(chat, "head -c 20000000 /dev/urandom > /mnt/user-data/outputs/big.bin")
    async with site.client.stream("GET", "/files/left/archive") as answer:
        async for _ in answer.aiter_raw():
            break
    async with asyncio.timeout(60):
        while site.fleet.state(chat).leases:
            await asyncio.sleep(0.05)
    assert len((await site.client.get("/files/left/archive")).content) > 20_000_000


async def test_a_file_that_shrinks_while_it_is_archived_does_not_break_the_archive(site):
    chat = Chat("shrink")
    await site.bash(
        chat, "head -c 12000000 /dev/urandom > /mnt/user-data/outputs/big.bin; echo z > /mnt/user-data/outputs/z"
    )
    async with site.client.stream("GET", "/files/shrink/archive") as answer:
        chunks = aiter(answer.aiter_raw())
        content = await anext(chunks)
        await site.bash(chat, "truncate -s 9000000 /mnt/user-data/outputs/big.bin")
        async for chunk in chunks:
            content += chunk
    archive = zipfile.ZipFile(io.BytesIO(content))
    assert archive.testzip() is None
    assert archive.read("outputs/z") == b"z\n"
