import asyncio
import hashlib
import os

import httpx
import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.files import uploads
from cubicle.files.uploads import FOLDER, Upload
from tests.conftest import IN_A_HURRY
from tests.support.service import fleet_of

from .conftest import site_of

CHAT = Chat("up")
ROUNDS = 600 if os.environ.get("CUBICLE_LONG") else 4 if IN_A_HURRY else 6
MANY = 1000 if os.environ.get("CUBICLE_LONG") else 200


class Remote(MemoryDriver):
    """A driver whose sandboxes lie elsewhere: all files go by the guest."""

    def uploads(self, name: str) -> None:
        return None


@pytest.fixture(scope="module", params=[MemoryDriver, Remote], ids=["on this host", "by the guest"])
async def fleet(request, tmp_path_factory):
    async with fleet_of(tmp_path_factory.mktemp("fleet"), kind=request.param) as fleet:
        yield fleet


async def test_an_upload_is_in_the_sandbox_and_in_the_list_when_the_answer_comes(site):
    body = b"caf\xc3\xa9\n" * 1000
    answer = await site.client.post("/api/uploads/up/notes/r%C3%A9sum%C3%A9.txt", content=body)
    assert answer.status_code == 201
    record = answer.json()
    assert record == {
        "filename": "notes/résumé.txt",
        "path": "/mnt/user-data/uploads/notes/résumé.txt",
        "size": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
        "uri": "file://uploads/up/notes%2Fr%C3%A9sum%C3%A9.txt",
        "mimeType": "text/plain",
    }
    assert (await site.client.get("/api/uploads/up")).json() == {"files": [record]}
    assert (
        await site.bash(CHAT, "cat '/mnt/user-data/uploads/notes/résumé.txt' | sha256sum") == record["sha256"] + "  -\n"
    )
    assert [u.path for u in await site.uploads.list(CHAT)] == ["notes/résumé.txt"]


async def test_an_encoded_slash_is_a_folder_too(site):
    answer = await site.client.post("/api/uploads/enc/a%2Fb%2Fc.bin", content=b"x")
    assert answer.json()["filename"] == "a/b/c.bin"
    assert answer.json()["mimeType"] == "application/octet-stream"


async def test_commands_cannot_change_an_upload(site):
    await site.client.post("/api/uploads/ro/x.txt", content=b"mine")
    async with site.fleet.lease(Chat("ro")) as machine:
        end, _ = await machine.output("echo other > /mnt/user-data/uploads/x.txt")
        assert end.code != 0
    assert (await site.client.get("/files/ro/x.txt")).content == b"mine"


async def test_a_form_with_a_file_is_taken_as_it_streams(site):
    body = bytes(range(256)) * 8000
    form = {"other": (None, b"--not--a--boundary--"), "file": ("ignored.bin", body)}
    answer = await site.client.post("/api/uploads/form/data.bin", files=form)
    assert answer.status_code == 201, answer.text
    assert answer.json()["sha256"] == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize(
    ("content_type", "body", "said"),
    [
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--b--\r\n',
            "no field",
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n123',
            "breaks off",
        ),
        ("multipart/form-data; boundary=b", b"nothing of the kind", "well-formed"),
        ("multipart/form-data", b"", "boundary"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n1\r\n' * 2 + b"--b--\r\n",
            "more than one",
        ),
        ("multipart/form-data; boundary=b", b"--b\r\nX: " + b"y" * 20000 + b"\r\n\r\n1\r\n--b--\r\n", "well-formed"),
    ],
)
async def test_a_broken_form_is_refused_and_nothing_is_kept(site, content_type, body, said):
    answer = await site.client.post("/api/uploads/bad/f", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 400
    assert said in answer.json()["detail"]
    assert (await site.client.get("/api/uploads/bad")).json() == {"files": []}


async def test_over_the_limit_is_refused_and_nothing_is_kept(site):
    big = b"x" * (8 * 1024**2 + 1)

    async def unannounced():
        for start in range(0, len(big), 65536):
            yield big[start : start + 65536]

    for content in (big, unannounced()):
        try:
            answer = await site.client.post("/api/uploads/large/f", content=content)
        except httpx.WriteError:
            continue  # the service hung up in the middle of what it had refused
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
    answer = await site.client.post("/api/uploads/large/f", files={"file": big})
    assert answer.status_code == 413
    assert (await site.client.post("/api/uploads/large/fits", content=big[:-1])).status_code == 201
    assert await site.bash(Chat("large"), "ls -A /mnt/user-data/uploads") == "fits\n"


async def test_a_form_that_never_comes_to_its_file_is_given_up(site):
    field = b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\n'
    head = "POST /api/uploads/endless/f HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    chunks = [field, *[bytes(1024**2)] * 10]
    reader, writer = await asyncio.open_connection(*site.url.removeprefix("http://").rsplit(":", 1))
    try:
        writer.write(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n".encode())
        for chunk in chunks:
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    finally:
        writer.close()


async def test_an_upload_that_breaks_off_leaves_nothing(site):
    host, _, port = site.url.removeprefix("http://").rpartition(":")
    await site.client.post("/api/uploads/broken/old", content=b"old")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /api/uploads/broken/old HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"n" * 5000)
    await writer.drain()
    _, other = await asyncio.open_connection(host, int(port))
    other.write(b"POST /api/uploads/broken/sub/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"n" * 5000)
    await other.drain()
    async with asyncio.timeout(60):  # until both have begun
        while "sub" not in await site.bash(Chat("broken"), "ls -A /mnt/user-data/uploads"):
            await asyncio.sleep(0.05)
    writer.close()
    other.close()
    async with asyncio.timeout(60):  # until it is noticed
        while await site.bash(Chat("broken"), "ls -A /mnt/user-data/uploads") != "old\n":
            await asyncio.sleep(0.05)
    assert (await site.client.get("/files/broken/old")).content == b"old"


async def test_delete_removes_and_says_when_there_is_nothing(site):
    await site.client.post("/api/uploads/del/a/b.txt", content=b"1")
    assert (await site.client.delete("/api/uploads/del/a/b.txt")).status_code == 204
    assert (await site.client.delete("/api/uploads/del/a/b.txt")).status_code == 404
    assert (await site.client.delete("/api/uploads/del/a")).status_code == 404
    assert (await site.client.delete("/api/uploads/nobody/x")).status_code == 404
    assert not site.fleet.has(Chat("nobody"))


async def test_a_folder_goes_with_its_last_file_and_its_name_is_free_again(site):
    for name in ("a/b/c/one", "a/b/two", "file"):
        assert (await site.client.post(f"/api/uploads/last/{name}", content=b"1")).status_code == 201
    assert (await site.client.delete("/api/uploads/last/a/b/c/one")).status_code == 204
    listed = "cd /mnt/user-data/uploads && find . -mindepth 1 | sort"
    assert await site.bash(Chat("last"), listed) == "./a\n./a/b\n./a/b/two\n./file\n"
    assert (await site.client.delete("/api/uploads/last/a/b/two")).status_code == 204
    assert await site.bash(Chat("last"), listed) == "./file\n"
    assert (await site.client.post("/api/uploads/last/a", content=b"2")).status_code == 201


async def test_what_can_be_uploaded_is_listed_however_deep(site):
    deepest = "/".join(["d"] * 31 + ["f"])
    assert (await site.client.post(f"/api/uploads/deep/{deepest}", content=b"1")).status_code == 201
    listed = (await site.client.get("/api/uploads/deep")).json()["files"]
    assert [record["filename"] for record in listed] == [deepest]
    refused = await site.client.post(f"/api/uploads/deep/d/{deepest}", content=b"1")
    assert refused.status_code == 400
    assert "31 folders at most" in refused.json()["detail"]


async def test_a_folder_in_the_way_is_a_conflict(site):
    await site.client.post("/api/uploads/clash/a/b", content=b"1")
    assert (await site.client.post("/api/uploads/clash/a", content=b"2")).status_code == 409
    assert (await site.client.post("/api/uploads/clash/a/b/c", content=b"2")).status_code == 409


async def test_a_chat_without_a_sandbox_has_no_uploads_and_gets_no_sandbox(site):
    assert (await site.client.get("/api/uploads/nothing-yet")).json() == {"files": []}
    assert not site.fleet.has(Chat("nothing-yet"))


async def test_readers_of_a_file_that_is_replaced_get_one_version_whole(site):
    size = 3_000_000
    versions = [bytes([letter]) * size for letter in b"ab"]
    await site.client.post("/api/uploads/swap/f", content=versions[0])
    done, seen = asyncio.Event(), 0

    async def write():
        for turn in range(100 * ROUNDS):
            if turn >= ROUNDS and seen > 3:
                break
            await site.client.post("/api/uploads/swap/f", content=versions[turn % 2])
        await site.client.delete("/api/uploads/swap/f")
        done.set()

    async def read():
        nonlocal seen
        while not done.is_set():
            answer = await site.client.get("/files/swap/f")
            if answer.status_code == 200:
                assert answer.content in versions
                seen += 1
            else:
                assert answer.status_code in (404, 503)

    async def look():
        """The same from inside: a command that has the file open sees one version to its end."""
        while not done.is_set():
            kinds = await site.bash(Chat("swap"), "cat /mnt/user-data/uploads/f 2>/dev/null | tr -s ab || true")
            assert kinds in ("a", "b", "")

    await asyncio.gather(write(), read(), read(), read(), look())
    assert seen > 3


@pytest.mark.real
@pytest.mark.timeout(600)
async def test_many_files_are_ordinary(site):
    gate = asyncio.Semaphore(16)

    async def send(number):
        async with gate:
            answer = await site.client.post(f"/api/uploads/many/f{number:04}", content=b"%d" % number)
            assert answer.status_code == 201

    await asyncio.gather(*(send(n) for n in range(MANY)))
    files = (await site.client.get("/api/uploads/many")).json()["files"]
    assert [f["filename"] for f in files] == [f"f{n:04}" for n in range(MANY)]
    assert all(f["sha256"] for f in files)


@pytest.mark.real
async def test_an_upload_is_listed_however_many_lie_there(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "_MAX_SUMMED", -1)
    async with fleet_of(tmp_path) as fleet, site_of(fleet) as site:
        await site.client.post("/api/uploads/crowded/first", content=b"1")
        (first,) = tmp_path.rglob("uploads/first")
        for number in range(10_001):
            (first.parent / f"f{number}").touch()
        assert (await site.client.post("/api/uploads/crowded/zzz-new.txt", content=b"1")).status_code == 201
        assert [upload.path for upload in await site.uploads.list(Chat("crowded"))][-1] == "zzz-new.txt"
        answer = (await site.client.get("/api/uploads/crowded")).json()
        assert len(answer["files"]) == 10_003
        assert answer["files"][-1]["filename"] == "zzz-new.txt"
        assert "complete" not in answer


async def test_a_list_that_is_cut_says_so(site, monkeypatch):
    for name in ("a", "b", "c/d"):
        await site.client.post(f"/api/uploads/cut/{name}", content=b"1")
    for most, names in ((4, ["a", "b", "c/d"]), (3, ["a", "b"]), (2, ["a", "b"])):
        monkeypatch.setattr(uploads, "MAX_LISTED", most)
        answer = (await site.client.get("/api/uploads/cut")).json()
        assert [record["filename"] for record in answer["files"]] == names
        assert answer.get("complete") is (None if most == 4 else False)


async def test_a_restarted_service_works_out_the_sums_again(site, fleet):
    await site.client.post("/api/uploads/sums/x", content=b"abc")
    async with site_of(fleet) as again:
        (record,) = (await again.client.get("/api/uploads/sums")).json()["files"]
    assert record["sha256"] == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[", "https://box.example.evil.example"])
async def test_a_page_of_another_site_changes_nothing(site, origin):
    await site.client.post("/api/uploads/csrf/kept", content=b"1")
    headers = {"Origin": origin}
    assert (await site.client.post("/api/uploads/csrf/x", content=b"1", headers=headers)).status_code == 403
    assert (await site.client.delete("/api/uploads/csrf/kept", headers=headers)).status_code == 403
    for own in (site.url, "https://box.example"):
        answer = await site.client.post("/api/uploads/csrf/kept", content=b"2", headers={"Origin": own})
        assert answer.status_code == 201


async def test_a_list_never_has_the_size_of_one_version_and_the_sum_of_another(site, monkeypatch):
    chat = Chat("versions")
    async with site.fleet.lease(chat) as machine:
        await machine.write(f"{FOLDER}/a", b"the new one", as_root=True)

    async def seen_before(_chat, _wake):
        return [Upload("a", 3, 1.0)], True

    monkeypatch.setattr(site.uploads, "_look", seen_before)
    ((upload, digest),), _ = await site.uploads.with_sums(chat)
    assert (upload.size, digest) == (11, hashlib.sha256(b"the new one").hexdigest())
