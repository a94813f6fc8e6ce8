import itertools
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from cubicle.core.chat import Chat
from cubicle.core.http_ranges import Part
from cubicle.core.signing import Grant, Reach
from cubicle.files import browse
from cubicle.machine.machine import HOME, OUTPUTS, UPLOADS

CHAT = Chat("files")
TEXT = b"0123456789" * 1000


@pytest.fixture(scope="module")
async def filled(site):
    await site.client.post("/api/uploads/files/both.txt", content=b"from uploads")
    await site.client.post("/api/uploads/files/only-up.txt", content=b"up")
    await site.bash(
        CHAT,
        """cd /mnt/user-data/outputs && printf 'from outputs' > both.txt && mkdir -p sub/deep
        for i in $(seq 1000); do printf 0123456789; done > ten.txt
        echo '<script>1</script>' | tee page.xhtml > page.html; echo '<svg/>' > pic.svg
        echo x > 'odd "name";%.txt'; echo pdf > a.pdf
        echo home > ~/both.txt; echo home > ~/home.txt; echo secret > ~/.hidden; echo deep > sub/deep/x; : > empty
        touch -d '2024-05-06 07:08:09.5 UTC' ten.txt""",
    )
    return site


async def test_outputs_come_first_then_uploads_then_the_workspace(filled):
    for path, content in (
        ("both.txt", b"from outputs"),
        ("only-up.txt", b"up"),
        ("home.txt", b"home\n"),
        ("uploads/both.txt", b"from uploads"),
        ("workspace/both.txt", b"home\n"),
        ("outputs/both.txt", b"from outputs"),
        ("sub/deep/x", b"deep\n"),
        ("empty", b""),
    ):
        answer = await filled.client.get(f"/files/files/{path}")
        assert (answer.status_code, answer.content) == (200, content), path


async def test_a_file_carries_type_size_version_and_a_wall(filled):
    answer = await filled.client.get("/files/files/ten.txt")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-length"] == "10000"
    assert answer.headers["last-modified"] == "Mon, 06 May 2024 07:08:09 GMT"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["content-disposition"].startswith("inline")
    assert answer.content == TEXT
    head = await filled.client.head("/files/files/ten.txt")
    assert head.headers["content-length"] == "10000"
    assert head.content == b""


@pytest.mark.parametrize(
    ("name", "walled"),
    [("page.html", True), ("page.xhtml", True), ("pic.svg", True), ("ten.txt", False), ("a.pdf", False)],
)
async def test_what_a_browser_could_run_has_no_rights(filled, name, walled):
    policy = (await filled.client.get(f"/files/files/{name}")).headers.get("content-security-policy", "")
    assert policy.startswith("sandbox;") == walled
    assert "allow-scripts" not in policy


@pytest.mark.parametrize(
    ("range_", "status", "content"),
    [
        ("bytes=0-9", 206, TEXT[:10]),
        ("bytes=5-5", 206, b"5"),
        ("bytes=9990-", 206, TEXT[9990:]),
        ("bytes=-3", 206, b"789"),
        ("bytes=0-99999", 206, TEXT),
        ("bytes=-99999", 206, TEXT),
        ("bytes=10000-", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=5-4", 200, TEXT),
        ("bytes=0-1,4-5", 200, TEXT),
        ("lines=1-2", 200, TEXT),
        ("bytes=a-b", 200, TEXT),
        ("bytes=-", 200, TEXT),
        ("bytes=99999999999999999999-", 416, None),
        ("bytes=" + "9" * 4000 + "-" + "9" * 4000, 416, None),
        ("bytes=" + "0" * 40 + "5-" + "9" * 40, 206, TEXT[5:]),
        ("bytes=-" + "9" * 40, 206, TEXT),
    ],
)
async def test_ranges(filled, range_, status, content):
    answer = await filled.client.get("/files/files/ten.txt", headers={"Range": range_})
    assert answer.status_code == status
    if status == 416:
        assert answer.headers["content-range"] == "bytes */10000"
        assert answer.headers["content-type"] == "application/problem+json"
    else:
        assert answer.content == content
    if status == 206:
        start, end = answer.headers["content-range"].removeprefix("bytes ").removesuffix("/10000").split("-")
        assert TEXT[int(start) : int(end) + 1] == content


@pytest.mark.parametrize("range_", ["bytes=0-9", "bytes=99999-"])
async def test_ranges_are_for_get_alone(filled, range_):
    answer = await filled.client.head("/files/files/ten.txt", headers={"Range": range_})
    assert (answer.status_code, answer.headers["content-length"]) == (200, "10000")
    assert "content-range" not in answer.headers


async def test_the_head_of_an_archive_tells_no_length(filled):
    whole = await filled.client.get("/files/files/archive")
    head = await filled.client.head("/files/files/archive")
    assert (head.status_code, head.content) == (200, b"")
    assert "content-length" not in head.headers
    for name in ("content-type", "content-disposition"):
        assert head.headers[name] == whole.headers[name]
    assert (await filled.client.head("/files/files/both.txt")).status_code == 200  # the connection is good for more


async def test_a_client_that_has_the_version_gets_no_bytes(filled):
    first = await filled.client.get("/files/files/ten.txt")
    tag = first.headers["etag"]
    for headers in (
        {"If-None-Match": tag},
        {"If-None-Match": f'"x", W/{tag}'},
        {"If-None-Match": "*"},
        {"If-Modified-Since": first.headers["last-modified"]},
    ):
        answer = await filled.client.get("/files/files/ten.txt", headers=headers)
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == tag
    for headers in ({"If-None-Match": '"other"'}, {"If-Modified-Since": "Mon, 06 May 2024 07:08:08 GMT"}):
        assert (await filled.client.get("/files/files/ten.txt", headers=headers)).status_code == 200


async def test_a_client_that_wants_another_version_is_refused(filled):
    first = await filled.client.get("/files/files/ten.txt")
    tag = first.headers["etag"]
    for headers in (
        {"If-Match": '"q"'},
        {"If-Match": f"W/{tag}"},
        {"If-Match": '"q"', "If-None-Match": tag, "Range": "bytes=99999-"},
        {"If-Unmodified-Since": "Mon, 06 May 2024 07:08:08 GMT"},
    ):
        answer = await filled.client.get("/files/files/ten.txt", headers=headers)
        assert answer.status_code == 412
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["etag"] == tag
    for headers in (
        {"If-Match": f'"q", {tag}'},
        {"If-Match": "*"},
        {"If-Match": tag, "If-Unmodified-Since": "Mon, 06 May 2024 07:08:08 GMT"},
        {"If-Unmodified-Since": first.headers["last-modified"]},
        {"If-Unmodified-Since": "nonsense"},
    ):
        assert (await filled.client.get("/files/files/ten.txt", headers=headers)).status_code == 200


async def test_a_range_of_another_version_gets_the_whole(filled):
    tag = (await filled.client.get("/files/files/ten.txt")).headers["etag"]
    for condition, status in ((tag, 206), ('"other"', 200), ("Mon, 06 May 2024 07:08:09 GMT", 200), ("nonsense", 200)):
        headers = {"Range": "bytes=0-0", "If-Range": condition}
        assert (await filled.client.get("/files/files/ten.txt", headers=headers)).status_code == status


async def test_no_condition_joins_the_parts_of_two_versions(site):
    await site.client.post("/api/uploads/joined/f", content=b"A" * 10)
    first = await site.client.get("/files/joined/f", headers={"Range": "bytes=0-4"})
    await site.client.post("/api/uploads/joined/f", content=b"B" * 10)
    date = (await site.client.get("/files/joined/f")).headers["last-modified"]  # often that of the first, too
    for condition in (date, first.headers["last-modified"], first.headers["etag"]):
        answer = await site.client.get("/files/joined/f", headers={"Range": "bytes=5-", "If-Range": condition})
        assert (answer.status_code, answer.content) == (200, b"B" * 10)


async def test_download_makes_an_attachment_whose_name_cannot_break_out(filled):
    answer = await filled.client.get("/files/files/odd%20%22name%22%3B%25.txt?download=1")
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"odd _name___.txt\"; filename*=UTF-8''odd%20%22name%22%3B%25.txt"
    )


async def test_the_listing_of_the_top_has_all_three_roots(filled):
    answer = (await filled.client.get("/files/files/")).json()
    assert answer["path"] == ""
    found = {(e["root"], e["name"]): e for e in answer["entries"]}
    assert found[("outputs", "ten.txt")] == {
        "name": "ten.txt",
        "kind": "file",
        "size": 10000,
        "modified": "2024-05-06T07:08:09Z",
        "root": "outputs",
        "url": "https://box.example/base/files/files/ten.txt",
    }
    assert found[("outputs", "sub")]["kind"] == "directory"
    assert found[("uploads", "both.txt")]["url"].endswith("/files/files/uploads/both.txt")
    assert found[("workspace", "both.txt")]["url"].endswith("/files/files/workspace/both.txt")
    assert ("workspace", ".hidden") not in found
    with_hidden = (await filled.client.get("/files/files/?hidden=1")).json()
    assert ".hidden" in [e["name"] for e in with_hidden["entries"]]


async def test_every_url_of_a_listing_leads_to_the_entry(filled):
    entries = (await filled.client.get("/files/files/")).json()["entries"]
    for entry in entries:
        answer = await filled.client.get(entry["url"].removeprefix("https://box.example/base"))
        assert answer.status_code == 200, entry
        if entry["kind"] == "file":
            assert len(answer.content) == entry["size"]
        else:
            assert answer.json()["entries"]


async def test_a_root_is_named_whatever_lies_in_the_others(site):
    chat = Chat("named")
    await site.client.post("/api/uploads/named/a.txt", content=b"upload")
    await site.bash(
        chat,
        """cd /mnt/user-data/outputs && mkdir uploads workspace && printf shadow | tee uploads/a.txt > workspace/h.txt
        printf final > r.txt; printf zip > archive; mkdir ~/outputs; printf draft | tee ~/outputs/r.txt > ~/outputs/archive
        printf home > ~/h.txt; printf only > uploads/only.txt""",
    )
    for path, content in (
        ("uploads/a.txt", b"upload"),
        ("outputs/uploads/a.txt", b"shadow"),
        ("outputs/r.txt", b"final"),
        ("workspace/outputs/r.txt", b"draft"),
        ("workspace/h.txt", b"home"),
        ("outputs/archive", b"zip"),
        ("uploads/only.txt", b"only"),
    ):
        assert (await site.client.get(f"/files/named/{path}")).content == content, path
    for folder in ("", "outputs/uploads/", "outputs/workspace/", "workspace/outputs/"):
        for entry in (await site.client.get(f"/files/named/{folder}")).json()["entries"]:
            answer = await site.client.get(entry["url"].removeprefix("https://box.example/base"))
            if entry["kind"] == "file":
                where = {"outputs": OUTPUTS, "uploads": UPLOADS, "workspace": HOME}[entry["root"]]
                inner = folder.partition("/")[2]
                assert answer.text == await site.bash(chat, f"cat {where}/{inner}{entry['name']}"), entry
            else:
                assert {e["root"] for e in answer.json()["entries"]} == {entry["root"]}


async def test_a_folder_is_listed_with_and_without_the_slash(filled):
    for path in ("sub", "sub/", "outputs/sub"):
        answer = (await filled.client.get(f"/files/files/{path}")).json()
        assert [(e["name"], e["kind"]) for e in answer["entries"]] == [("deep", "directory")]


async def test_a_folder_that_cannot_be_read_is_not_there_and_hides_nothing_else(site):
    await site.client.post("/api/uploads/locked/a.txt", content=b"up")
    await site.bash(Chat("locked"), "cd /mnt/user-data/outputs && mkdir shut && echo x > x && chmod 000 shut")
    assert (await site.client.get("/files/locked/shut/")).status_code == 404
    top = (await site.client.get("/files/locked/")).json()
    assert [(e["root"], e["name"]) for e in top["entries"]] == [
        ("outputs", "shut"),
        ("outputs", "x"),
        ("uploads", "a.txt"),
    ]
    assert top["complete"] is True
    await site.bash(Chat("locked"), "chmod 111 /mnt/user-data/outputs")
    top = (await site.client.get("/files/locked/")).json()
    assert [(e["root"], e["name"]) for e in top["entries"]] == [("uploads", "a.txt")]
    assert top["complete"] is False
    assert (await site.client.get("/files/locked/outputs/")).status_code == 404
    assert (await site.client.get("/files/locked/x")).content == b"x\n"


async def test_a_listing_says_when_there_is_more_than_it_holds(site, monkeypatch):
    monkeypatch.setattr(browse, "MAX_LISTED", 5)
    await site.bash(Chat("counted"), "cd /mnt/user-data/outputs && mkdir four five six && touch {four,five,six}/{1..4}")
    await site.bash(Chat("counted"), "cd /mnt/user-data/outputs && touch {five,six}/5 six/6")
    for folder, count, complete in (("four", 4, True), ("five", 5, True), ("six", 5, False), ("", 3, True)):
        answer = (await site.client.get(f"/files/counted/{folder}")).json()
        assert (len(answer["entries"]), answer["complete"]) == (count, complete), folder
    await site.bash(Chat("counted"), "touch ~/{1..3}")
    top = (await site.client.get("/files/counted/")).json()
    assert (len(top["entries"]), top["complete"]) == (5, False)


async def test_a_stopped_chat_is_woken_when_the_reader_says_so(filled):
    await filled.fleet.stop(CHAT)
    assert (await filled.client.get("/files/files/both.txt")).status_code == 409
    assert (await filled.client.get("/files/files/both.txt?wake=1")).content == b"from outputs"


async def test_a_chat_without_a_sandbox_is_empty_and_stays_so(site):
    assert (await site.client.get("/files/none/")).json() == {"path": "", "entries": [], "complete": True}
    assert (await site.client.get("/files/none/x")).status_code == 404
    assert (await site.client.get("/files/none/archive")).status_code == 404
    assert not site.fleet.has(Chat("none"))


@pytest.mark.parametrize(
    ("door", "dest", "whence", "status"),
    [
        ("files", "script", "same-origin", 403),
        ("files", "script", "cross-site", 403),
        ("files", "serviceworker", "same-origin", 403),
        ("files", "style", "same-origin", 403),
        ("raw", "script", "same-origin", 403),
        ("raw", "worker", "same-origin", 403),
        ("raw", "script", "cross-site", 200),
        ("raw", "style", "cross-site", 200),
        ("files", "empty", "same-origin", 200),
        ("files", "image", "same-origin", 200),
        ("files", "document", "none", 200),
        ("raw", "iframe", "same-origin", 200),
    ],
)
async def test_no_file_is_code_of_the_services_own_pages(filled, door, dest, whence, status):
    base = f"/raw/{filled.links.capability(Grant(CHAT, Reach.SCRIPTS))}/" if door == "raw" else "/files/files/"
    asked = {"Sec-Fetch-Dest": dest, "Sec-Fetch-Site": whence}
    answer = await filled.client.get(base + "ten.txt", headers=asked)
    assert answer.status_code == status
    assert (answer.content == TEXT) is (status == 200)


async def test_times_that_no_calendar_has_are_shown_as_some_time(site):
    await site.bash(
        Chat("times"),
        "cd /mnt/user-data/outputs && touch -d @99999999999 far && touch -d @-9999999 past",
    )
    entries = {e["name"]: e for e in (await site.client.get("/files/times/")).json()["entries"]}
    assert datetime.fromisoformat(entries["past"]["modified"]) == datetime(1970, 1, 1, tzinfo=UTC)
    assert (await site.client.get("/files/times/far")).status_code == 200


class Restless:
    """A machine whose file is another one at every look."""

    def __init__(self, machine):
        self._machine = machine
        self._versions = itertools.count(1)

    @asynccontextmanager
    async def read(self, path, **options):
        await self._machine.write(path, b"x" * next(self._versions))
        async with self._machine.read(path, **options) as reader:
            yield reader


async def test_a_file_that_is_replaced_all_the_time_is_read_whole_in_one_version(site):
    async with site.fleet.lease(Chat("restless")) as machine:
        await machine.write(f"{OUTPUTS}/a", b"")
        place = await browse.find(machine, "a")
        async with browse.opened(Restless(machine), place, lambda version: Part(0, version.size)) as (reader, part):  # type: ignore[arg-type]
            content = b"".join([chunk async for chunk in reader])
        assert len(content) == part.length == reader.stat.size > 0
        with pytest.raises(browse.Changing):
            async with browse.opened(Restless(machine), place, lambda version: Part(0, version.size, partial=True)):  # type: ignore[arg-type]
                pass
