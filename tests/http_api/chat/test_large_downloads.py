"""Files that the kernel sends from the sandbox's disk: what comes before, after and instead of all their bytes."""

import asyncio
import os
import socket
import struct
from contextlib import asynccontextmanager, suppress

import pytest

from cubicle.core.chat import Chat
from cubicle.http_api import uvicorn_http
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import OUTPUTS
from cubicle.machine.passed_file import PassedFile
from tests.conftest import IN_A_HURRY
from tests.support.service import fleet_of

from .conftest import site_of

MB = 1024**2
BODY = bytes(range(256)) * 4096 * 20 + b"the end"
LIMIT = 120


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    """The service runs on uvloop, which writes when it sees fit; the tests usually do not."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(scope="module")
async def served(anyio_backend, tmp_path_factory):
    async with fleet_of(tmp_path_factory.mktemp("fleet")) as fleet, site_of(fleet) as site:
        assert ("uvloop" in str(type(asyncio.get_running_loop()))) is anyio_backend[1]["use_uvloop"]
        yield site


@pytest.fixture(autouse=True)
def poured(monkeypatch):
    """The files that went that way: a test here in which none did would say nothing."""
    seen = []
    into = PassedFile.into

    async def seen_into(self, target):
        seen.append(self)
        return await into(self, target)

    monkeypatch.setattr(PassedFile, "into", seen_into)
    yield seen
    assert seen


@pytest.fixture
async def site(served):
    """With the file that every test expects, written again where the last one left another."""
    async with served.fleet.lease(Chat("down")) as machine:
        with suppress(MachineError):
            if (await machine.stat(f"{OUTPUTS}/large")).size == len(BODY):
                return served
    await put(served, BODY)
    return served


async def put(site, content):
    async with site.fleet.lease(Chat("down")) as machine:
        await machine.write(f"{OUTPUTS}/large", content)


def request(*headers, method="GET", path="/files/down/large"):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


@asynccontextmanager
async def connection(site, *, slow=False):
    """A slow one has little room for what comes, so that the service has to wait."""
    host, _, port = site.url.removeprefix("http://").rpartition(":")
    sock = socket.socket()
    if slow:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=65536)
    try:
        async with asyncio.timeout(LIMIT):
            yield reader, writer
    finally:
        writer.close()


async def head(reader):
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:] if line)


async def answer(reader):
    """(status, headers, content) of the next answer on the connection."""
    status, headers = await head(reader)
    return status, headers, await reader.readexactly(int(headers["content-length"]))


async def test_the_next_request_on_the_connection_is_answered_behind_it(site):
    async with connection(site) as (reader, writer):
        for _ in range(3):
            writer.write(request())
            status, _, content = await answer(reader)
            assert (status, content == BODY) == (200, True)
        writer.write(request(path="/files/down/"))
        status, _, content = await answer(reader)
        assert status == 200
        assert b"large" in content


async def test_requests_that_are_sent_at_once_are_answered_in_their_order(site, poured):
    async with connection(site) as (reader, writer):
        writer.write(request() + request("Range: bytes=5-2000004") + request(path="/files/down/") + request())
        assert (await answer(reader))[2] == BODY
        assert (await answer(reader))[2] == BODY[5:2000005]
        assert b"large" in (await answer(reader))[2]
        assert (await answer(reader))[2] == BODY


async def test_a_request_that_comes_meanwhile_waits_for_its_turn(site):
    async with connection(site) as (reader, writer):
        writer.write(request())
        _, headers = await head(reader)
        start = await reader.readexactly(MB)
        writer.write(request(path="/files/down/") + request(method="HEAD"))
        await writer.drain()
        assert start + await reader.readexactly(int(headers["content-length"]) - MB) == BODY
        assert b"large" in (await answer(reader))[2]
        assert (await head(reader))[1]["content-length"] == str(len(BODY))


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        (f"bytes=0-{2 * MB - 1}", 0, 2 * MB),
        (f"bytes=3-{MB + 9}", 3, MB + 10),
        (f"bytes=-{MB + 1}", len(BODY) - MB - 1, len(BODY)),
        ("bytes=7-", 7, len(BODY)),
    ],
)
async def test_parts(site, wanted, start, end):
    fetched = await site.client.get("/files/down/large", headers={"Range": wanted})
    assert (fetched.status_code, fetched.content == BODY[start:end]) == (206, True)
    assert fetched.headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(BODY)}"


async def test_the_version_is_that_of_a_small_part(site):
    whole = await site.client.get("/files/down/large")
    part = await site.client.get("/files/down/large", headers={"Range": "bytes=0-9"})
    empty = await site.client.head("/files/down/large")
    assert whole.headers["ETag"] == part.headers["ETag"] == empty.headers["ETag"]
    assert whole.headers["Last-Modified"] == part.headers["Last-Modified"]
    again = await site.client.get("/files/down/large", headers={"If-None-Match": whole.headers["ETag"]})
    assert again.status_code == 304


async def test_a_client_that_wants_no_more_sees_the_end(site):
    _, heard = await site.raw(request("Connection: close"))
    assert heard.partition(b"\r\n\r\n")[2] == BODY
    _, heard = await site.raw(request().replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert heard.partition(b"\r\n\r\n")[2] == BODY


def descriptors(name="large"):
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if name in path]


async def until(holds):
    async with asyncio.timeout(LIMIT):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", ["closes", "resets", "half closes"])
async def test_a_client_that_goes_away_leaves_nothing_open(site, way):
    await until(lambda: not descriptors())
    async with connection(site, slow=True) as (reader, writer):
        writer.write(request())
        await reader.readexactly(1000)
        assert descriptors()
        if way == "half closes":
            writer.write_eof()
        elif way == "resets":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if way != "half closes":
            writer.transport.abort()
        await until(lambda: not descriptors())
    assert (await site.client.get("/files/down/large")).content == BODY


async def test_clients_that_do_not_read_hold_up_nobody_and_get_all_in_the_end(site):
    async with connection(site, slow=True) as (reader, writer):
        writer.write(request())
        others = []
        for _ in range(6):  # more than there are threads
            other = connection(site, slow=True)
            _, stalled = await other.__aenter__()
            stalled.write(request())
            others.append(other)
        answers = await asyncio.gather(*(site.client.get("/files/down/large") for _ in range(4)))
        assert all(one.content == BODY for one in answers)
        for other in others:
            await other.__aexit__(None, None, None)
        assert (await answer(reader))[2] == BODY


@pytest.mark.parametrize("way", ["from the disk", "by the service"])
@pytest.mark.real
async def test_a_client_that_never_reads_is_given_up(site, way):
    await until(lambda: not descriptors())
    hurry = pytest.MonkeyPatch()
    hurry.setattr(uvicorn_http, "TIMEOUT", 1.0)
    async with connection(site, slow=True) as (reader, writer):
        # A second request in the pipeline makes uvicorn send the answer.
        writer.write(request() if way == "from the disk" else request() + request(path="/files/down/"))
        assert (await head(reader))[0] == 200
        hurry.undo()  # others have their time
        await until(lambda: not descriptors())
        got = 0
        with suppress(ConnectionError):
            while part := await reader.read(MB):
                got += len(part)
        assert got < len(BODY)
    assert (await site.client.get("/files/down/large")).content == BODY


async def test_it_is_whole_old_or_whole_new_while_it_is_replaced(site):
    versions = [bytes([letter]) * (2 * MB + letter) for letter in b"abc"]
    done = False

    async def replace():
        while not done:
            for version in versions:
                await put(site, version)

    await put(site, versions[0])
    replacing = asyncio.ensure_future(replace())
    try:
        async with asyncio.timeout(LIMIT):
            for _ in range(6 if IN_A_HURRY else 20):
                fetched = await site.client.get("/files/down/large")
                assert fetched.status_code == 503 or fetched.content in versions
    finally:
        done = True
        await replacing


async def test_a_file_that_is_cut_short_breaks_the_connection(site):
    async with connection(site, slow=True) as (reader, writer):
        writer.write(request())
        assert (await head(reader))[1]["content-length"] == str(len(BODY))
        await site.bash(Chat("down"), f"truncate -s 0 {OUTPUTS}/large")
        assert len(await reader.read(-1)) < len(BODY)


async def test_a_chat_that_is_stopped_meanwhile_leaves_nothing_open(site):
    await until(lambda: not descriptors())
    async with connection(site, slow=True) as (reader, writer):
        writer.write(request())
        assert (await head(reader))[0] == 200
        assert descriptors()
        await site.fleet.stop(Chat("down"))
        await until(lambda: not descriptors())
        assert len(await reader.read(-1)) < len(BODY)
    assert (await site.client.get("/files/down/large?wake=1")).content == BODY
