"""What a thread makes of a socket."""

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from cubicle.machine.upload_folder import UploadFolder
from cubicle.machine.zero_copy import BrokeOff, Mover, ZeroCopy, _own

MB = 1024**2
BODY = os.urandom(MB) * 20 + b"the end"


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def ends_of_tcp():
    """As `ends`; it is for such a one only that the kernel waits until much has come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def folder(tmp_path):
    return UploadFolder(tmp_path, os.geteuid())


@pytest.fixture
def draft(folder):
    draft = folder.draft("file")
    yield draft
    draft.close()


def opened():
    return len(os.listdir("/proc/self/fd"))


async def test_exactly_the_rest_is_taken(ends, draft, tmp_path):
    ours, theirs = ends
    theirs.sendall(b"the rest, and more")
    pour = ZeroCopy(ours.fileno(), len(b"the rest"))
    found, digest = await pour.into(lambda: draft, b"first, ")
    pour.close()
    assert found.st_size == len(b"first, the rest")
    assert (tmp_path / "file").read_bytes() == b"first, the rest"
    assert digest == hashlib.sha256(b"first, the rest").hexdigest()
    assert ours.recv(100) == b", and more"


@pytest.mark.parametrize("step", [len(BODY), 3 * MB + 1, 300_001])
async def test_much_comes_whole_however_it_is_cut(ends, draft, tmp_path, step):
    ours, theirs = ends
    theirs.setblocking(False)

    async def send():
        for start in range(0, len(BODY), step):
            await asyncio.get_running_loop().sock_sendall(theirs, BODY[start : start + step])
            await asyncio.sleep(0.004 if step < len(BODY) else 0)  # longer than a burst waits

    before = opened()
    pour = ZeroCopy(ours.fileno(), len(BODY))
    sending = asyncio.create_task(send())
    _, digest = await pour.into(lambda: draft, b"first, ")
    await sending
    pour.close()
    assert opened() <= before
    assert digest == hashlib.sha256(b"first, " + BODY).hexdigest()
    assert (tmp_path / "file").read_bytes() == b"first, " + BODY
    assert pour._news.empty()  # nothing piles up, however long it takes


async def test_a_client_that_says_nothing_any_more_is_given_up(ends, draft):
    pour = ZeroCopy(ends[0].fileno(), 10, idle=0.05)
    with pytest.raises(BrokeOff):
        await pour.into(lambda: draft, b"")
    pour.close()


@pytest.mark.real
async def test_a_client_that_sends_as_little_as_one_byte_in_time_is_borne(ends_of_tcp, draft):
    ours, theirs = ends_of_tcp
    pour = ZeroCopy(ours.fileno(), 6, idle=4.0)
    pouring = asyncio.create_task(pour.into(lambda: draft, b""))
    theirs.sendall(b"a")
    async with asyncio.timeout(60):
        while pour.rest == 6:
            await asyncio.sleep(0.01)
    theirs.sendall(b"b")  # not worth waking anybody: it counts when the time is over
    await asyncio.sleep(4.5)
    theirs.sendall(b"cdef")
    async with asyncio.timeout(60):
        assert (await pouring)[1] == hashlib.sha256(b"abcdef").hexdigest()
    pour.close()


async def test_a_sandbox_that_goes_down_ends_it_while_the_client_pauses(ends, folder, draft):
    pour = ZeroCopy(ends[0].fileno(), 10)
    pouring = asyncio.create_task(pour.into(lambda: draft, b"first"))
    await asyncio.to_thread(folder.end)
    async with asyncio.timeout(60):
        with pytest.raises(OSError, match="no longer up"):
            await pouring
    pour.close()


@pytest.mark.parametrize("sent", [b"half", BODY])
async def test_a_client_that_ends_too_early_is_given_up(ends, draft, sent):
    ours, theirs = ends

    def send():
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)

    before = opened()
    pour = ZeroCopy(ours.fileno(), len(sent) + 10)
    sending = asyncio.create_task(asyncio.to_thread(send))
    with pytest.raises(BrokeOff):
        await pour.into(lambda: draft, b"")
    await sending
    pour.close()
    assert opened() <= before
    assert pour.rest == 10


async def test_a_sandbox_that_goes_down_ends_it_although_the_client_keeps_silent(ends, folder, draft, monkeypatch):
    ours, theirs = ends
    summed = draft.add_to

    def add_to(*arguments):
        folder.end()  # just when the sum is behind what is written
        summed(*arguments)

    monkeypatch.setattr(draft, "add_to", add_to)
    pour = ZeroCopy(ours.fileno(), 100 * MB)
    sending = asyncio.create_task(asyncio.to_thread(theirs.sendall, BODY[: 2 * MB]))
    async with asyncio.timeout(60):
        with pytest.raises(OSError, match="no longer up"):
            await pour.into(lambda: draft, b"")
    pour.close()
    ours.close()
    with suppress(BrokenPipeError, ConnectionResetError):  # nobody takes what is left
        await sending


async def test_what_cannot_be_written_is_said_and_how_much_was_taken_is_known(ends, draft, monkeypatch):
    ours, theirs = ends
    theirs.sendall(b"half")

    def full(pipe, count):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(draft, "drain", full)
    pour = ZeroCopy(ours.fileno(), 10)
    with pytest.raises(OSError, match="No space"):
        await pour.into(lambda: draft, b"")
    pour.close()
    assert pour.rest == 6


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor only")
async def test_who_sums_up_keeps_its_processor_to_itself_as_long_as_there_is_something_to_sum_up():
    allowed = os.sched_getaffinity(0)
    mover = Mover()
    for _ in range(3):
        left = await asyncio.wrap_future(mover.start(lambda: os.sched_getaffinity(0)))  # type: ignore[arg-type, return-value]
        assert left < allowed  # type: ignore[operator]
        assert len(left) == len(allowed) - 1  # type: ignore[arg-type]
        mover.roam()
        assert await asyncio.wrap_future(mover._thread.submit(os.sched_getaffinity, 0)) == allowed
    assert os.sched_getaffinity(0) == allowed


async def test_one_that_has_its_name_is_not_said_to_have_failed_although_its_task_is_cancelled(
    ends, draft, monkeypatch
):
    ours, theirs = ends
    publishing, goes_on, publish = threading.Event(), threading.Event(), draft.publish

    def slowly():
        publishing.set()
        goes_on.wait(60)
        return publish()

    monkeypatch.setattr(draft, "publish", slowly)
    pour = ZeroCopy(ours.fileno(), 4)
    pouring = asyncio.create_task(pour.into(lambda: draft, b""))
    theirs.sendall(b"body")
    assert await asyncio.to_thread(publishing.wait, 60)
    pouring.cancel()
    goes_on.set()
    async with asyncio.timeout(60):
        found, digest = await pouring
    pour.close()
    assert (found.st_size, digest) == (4, hashlib.sha256(b"body").hexdigest())


def test_it_has_no_thread_before_there_is_something_to_pour():
    said = subprocess.check_output(
        [sys.executable, "-c", "import threading, cubicle.machine.zero_copy; print(threading.active_count())"]
    )
    assert said == b"1\n"


def test_who_moves_may_go_anywhere_again_although_it_broke_off(ends, draft, monkeypatch):
    def breaks_off():
        raise BrokeOff

    def catch_up(_draft):
        while pour._news.empty():  # so it breaks off while something is summed up
            time.sleep(0.01)

    pour = ZeroCopy(ends[0].fileno(), 10)
    monkeypatch.setattr(pour, "_catch_up", catch_up)
    with pytest.raises(BrokeOff):
        pour._sum_while_it_comes(draft, breaks_off)
    pour.close()
    assert _own.mover._thread.submit(os.sched_getaffinity, 0).result(60) == os.sched_getaffinity(0)
