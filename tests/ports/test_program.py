"""What reads the answers of programs: within bounds, whatever a program sends and however it comes."""

from __future__ import annotations

import asyncio
from time import thread_time

import pytest

from cubicle.ports.program import Answer, BadRequest, NotHttp, ProgramConnection

pytestmark = pytest.mark.anyio


class Pieces:
    """The stream of a program that sends this in pieces of a size."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    async def read(self, most: int = 65536) -> bytes:
        await asyncio.sleep(0)
        size = min(most, self._size)
        piece, self._data = self._data[:size], self._data[size:]
        return piece

    async def write(self, _data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


async def answer(data: bytes, size: int = 65536) -> tuple[Answer, bytes]:
    connection = ProgramConnection(Pieces(data, size))  # type: ignore[arg-type]
    await connection.send_head("GET", b"/", [(b"Host", b"x")])
    head = await connection.head()
    return head, b"".join([chunk async for chunk in connection.body()])


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n"
BODY = b"\n" * 200_000


@pytest.mark.parametrize("size", [1, 7, 4096, 65536])
async def test_a_head_and_a_body_of_lines_in_any_pieces(size: int) -> None:
    body = BODY[: min(len(BODY), size * 1000)]
    early = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" * 3
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 100) for number in range(100))
    head, got = await answer(early + HEAD % len(body) + lines + b"\r\n" + body, size)
    assert len(head.headers) == 101
    assert got == body


@pytest.mark.parametrize("size", [1000, 65536])
@pytest.mark.parametrize(
    "sent",
    [
        HEAD % 0 + b"a:\r\n" * 14_000 + b"\r\n",
        HEAD % 0 + b"a:\n" * 20_000 + b"\n",
        b"HTTP/1.1 100 a\r\n\r\n" * 4000,
        b"HTTP/1.1 100 a\r\n" + b"a:\r\n" * 14_000 + b"\r\n",
        HEAD % 0 + b"a: " + b"a" * 500_000,
        b"\r\n" * 30_000,
    ],
)
async def test_a_head_that_costs_much_is_refused_early(sent: bytes, size: int) -> None:
    began = thread_time()
    with pytest.raises(NotHttp):
        await answer(sent, size)
    assert thread_time() - began < 0.5


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"


class Endless(Pieces):
    """A program that repeats the last part of its answer for ever, as fast as it is read."""

    def __init__(self, begin: bytes, again: bytes) -> None:
        super().__init__(begin, 65536)
        self._again = again
        self.sent = 0

    async def read(self, most: int = 65536) -> bytes:
        piece = await super().read(most) or self._again
        self.sent += len(piece)
        return piece


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (CHUNKED + b"0\r\nX: ", b"a" * 60_000),
        (CHUNKED + b"0\r\n", b"X: a\r\n" * 10_000),
        (CHUNKED + b"2;", b"a" * 60_000),
        (CHUNKED + b'2; x="', b"a" * 60_000),
        (b"HTTP/1.1 104 Upload\r\nContent-Length: 1000000000\r\n\r\n", bytes(60_000)),
        (b"HTTP/1.1 103 Early\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", bytes(60_000)),
        (b"HTTP/1.1 200 " + b"a" * 1000, b"a" * 60_000),
    ],
    ids=["a trailer", "trailers", "an extension", "a quoted extension", "interim", "interim chunks", "the reason"],
)
async def test_what_is_no_body_has_an_end(begin: bytes, again: bytes) -> None:
    """What the parser keeps until a line is whole is a part of memory that the program could fill."""
    stream, began = Endless(begin, again), thread_time()
    connection = ProgramConnection(stream)  # type: ignore[arg-type]
    await connection.send_head("GET", b"/", [(b"Host", b"x")])
    with pytest.raises(NotHttp):
        await connection.head()
        async for chunk in connection.body():
            assert chunk == b"ok"
    assert stream.sent < 400_000
    assert thread_time() - began < 0.5


async def test_chunk_extensions_and_trailers_within_bounds_are_passed_over() -> None:
    sent = CHUNKED + b"3;%s\r\nabc\r\n" % (b"x" * 30_000) * 10 + b"0\r\nX: %s\r\n\r\n" % (b"y" * 30_000)
    assert (await answer(sent))[1] == b"ok" + b"abc" * 10


async def test_an_answer_that_breaks_off_is_not_taken_for_whole() -> None:
    with pytest.raises(NotHttp):
        await answer(HEAD % 10 + b"\r\nshort")
    with pytest.raises(NotHttp):
        await answer(b"")
    assert (await answer(b"HTTP/1.1 200 OK\r\n\r\nuntil the end"))[1] == b"until the end"


@pytest.mark.parametrize("size", [1, 5, 65536])
@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, b"ok"),
        (b"HTTP/1.0 200\r\n\r\nok", 200, b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\nX: trailer\r\n\r\n", 200, b"ok"),
        (b"HTTP/1.1 204 No\r\nContent-Length: 9\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 No\r\n\r\n", 304, b""),
        (b"HTTP/1.1 799 Strange\r\nContent-Length: 0\r\nEmpty:\r\n\r\n", 799, b""),
    ],
)
async def test_answers_of_all_framings(sent: bytes, status: int, body: bytes, size: int) -> None:
    head, got = await answer(sent, size)
    assert (head.status, got) == (status, body)
    assert b"X" not in dict(head.headers)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA\0b: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_answers_that_could_be_understood_in_two_ways_are_refused(sent: bytes) -> None:
    with pytest.raises(NotHttp):
        await answer(sent)


async def test_what_comes_behind_an_answer_is_no_part_of_it() -> None:
    one = HEAD % 2 + b"\r\nok"
    for size in (len(one), 65536):
        assert (await answer(one + one, size))[1] == b"ok"


@pytest.mark.parametrize(
    ("target", "line"),
    [(b"/ HTTP/1.1\r\nX: y", b""), (b"/a b", b""), (b"/", b"a\r\nb"), (b"/", b"a\nb"), (b"/", b"\0")],
)
async def test_a_request_that_would_be_two_is_not_written(target: bytes, line: bytes) -> None:
    connection = ProgramConnection(Pieces(b"", 1))  # type: ignore[arg-type]
    with pytest.raises(BadRequest):
        await connection.send_head("GET", target, [(b"Host", b"x"), (b"A", line)])
