"""Kept events: what is bounded, and what a reader gets."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from cubicle.core.chat import Chat
from cubicle.mcp_api import event_streams
from cubicle.mcp_api.event_streams import EventStream, EventStreams

CHAT = Chat("one")


class Ended:
    """Whether the work of a stream was given up."""

    def __init__(self) -> None:
        self.done = asyncio.Event()

    def __call__(self) -> None:
        self.done.set()


def stream_of(id: str = "call", chat: Chat = CHAT, grace: float = 3600, ended: Ended | None = None) -> EventStream:
    return EventStream(id, chat, "session", f"{id}.", grace, ended or Ended())


def numbers(pieces: list[bytes]) -> list[int]:
    lines = b"".join(pieces).decode().splitlines()
    return [int(line.rpartition(".")[2]) for line in lines if line.startswith("id: ")]


async def test_a_writer_waits_for_a_reader_that_is_away_and_nothing_is_lost() -> None:
    stream = stream_of()
    half = [b"data: " + b"x" * (event_streams.MAX_UNSENT // 2)]
    for _ in range(1):
        await stream.put(half)
    waiting = asyncio.create_task(stream.put(half))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    with stream.reading(-1) as reader:
        assert numbers(await reader.next()) == [0, 1]
        next_one = asyncio.create_task(reader.next())
        await asyncio.wait_for(waiting, 10)
        await stream.put([b"data: more"])
        assert numbers(await next_one) == [2]


async def test_a_call_that_is_done_waits_for_nobody() -> None:
    stream = stream_of()
    waiting = asyncio.create_task(stream.put([b"x" * 10 * event_streams.MAX_UNSENT]))
    await asyncio.sleep(0)
    stream.hurry()
    await asyncio.wait_for(waiting, 10)
    await asyncio.wait_for(stream.put([b"x" * event_streams.MAX_UNSENT]), 10)
    stream.finish([b"data: answer"])
    with stream.reading(-1) as reader:
        assert numbers(await reader.next()) == [0, 1, 2]
        assert reader.is_complete
        assert await reader.next() == []


async def test_what_was_sent_is_kept_within_a_bound() -> None:
    stream = stream_of()
    with stream.reading(-1) as reader:
        for _ in range(100):
            await stream.put([b"data: " + b"x" * 10_000])
            await reader.next()
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(_settled(reader))), 10)
    assert stream.size < event_streams.MAX_SENT + 30_000
    with stream.reading(0) as reader:  # what is not kept any more is left out
        assert numbers(await reader.next())[-1] == 100


async def _settled(reader: event_streams.EventReader) -> None:
    reader._stream.finish([b"data: answer"])
    await reader.next()
    await reader.next()


async def test_while_nobody_reads_the_time_runs_and_a_reader_stops_it() -> None:
    ended = Ended()
    stream = stream_of(grace=0.05, ended=ended)
    with stream.reading(-1):
        await asyncio.sleep(0.1)
        assert not ended.done.is_set()
        with stream.reading(-1):
            pass
        await asyncio.wait_for(ended.done.wait(), 10)


async def test_without_a_grace_time_the_work_ends_with_its_reader() -> None:
    ended = Ended()
    with stream_of(grace=0, ended=ended).reading(-1):
        assert not ended.done.is_set()
    assert ended.done.is_set()


async def test_finished_answers_are_bounded_by_chat_and_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "MAX_ENDED_OF_A_CHAT", 30_000)
    monkeypatch.setattr(event_streams, "MAX_ENDED_OF_A_TENANT", 50_000)
    streams = EventStreams(3600)
    for chat in (CHAT, Chat("two"), Chat("three", "another")):
        for number in range(10):
            stream = stream_of(f"{chat.id}{chat.tenant}{number}", chat)
            streams.add(stream)
            stream.finish([b"x" * 10_000])
            streams.keep(stream)
    kept = [
        id
        for id in (
            f"{c}{t}{n}"
            for c, t in (("one", CHAT.tenant), ("two", CHAT.tenant), ("three", "another"))
            for n in range(10)
        )
        if streams.find(id)
    ]
    assert len([id for id in kept if id.startswith("three")]) == 2
    assert len([id for id in kept if id.startswith("two")]) == 2
    assert len(kept) <= 6
    assert streams.has_room(CHAT)
    streams.close()


async def test_finished_answers_are_forgotten_after_a_while() -> None:
    streams = EventStreams(0.01)
    stream = stream_of()
    streams.add(stream)
    stream.finish([b"data: answer"])
    streams.keep(stream)
    for _ in range(500):
        if streams.find("call") is None:
            break
        await asyncio.sleep(0.02)
    assert streams.find("call") is None
    streams.close()


async def test_streams_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "MAX_STREAMS_OF_A_CHAT", 2)
    monkeypatch.setattr(event_streams, "MAX_STREAMS_OF_A_TENANT", 3)
    streams = EventStreams(3600)
    made = [stream_of(f"{number}") for number in range(2)]
    for stream in made:
        streams.add(stream)
    assert not streams.has_room(CHAT)
    streams.add(stream_of("other", Chat("two")))
    assert not streams.has_room(Chat("three"))
    assert streams.has_room(Chat("three", "another"))
    streams.drop(made[0])
    assert streams.has_room(CHAT)


async def test_when_streams_under_way_take_too_much_they_keep_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "MAX_LIVE_OF_A_TENANT", 60_000)
    streams, stream = EventStreams(60), stream_of()
    streams.add(stream)
    with stream.reading(-1) as reader:
        for _ in range(5):
            await stream.put([b"data: " + b"x" * 10_000])
            await reader.next()
        waiting = asyncio.create_task(stream.put([b"data: " + b"x" * 10_000]))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert not streams.has_room(CHAT)
        assert streams.has_room(Chat("one", tenant="another"))
        await reader.next()  # what was sent before is dropped
        await asyncio.wait_for(waiting, 10)
        assert streams.has_room(CHAT)
    stream.finish([b"data: answer"])
    streams.keep(stream)
    assert streams._bytes == event_streams.LiveBytes()
    streams.close()


async def test_a_delivered_answer_is_forgotten_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "DELIVERED_SECONDS", 0.01)
    streams, delivered, lost = EventStreams(60), stream_of("delivered"), stream_of("lost")
    for stream in (delivered, lost):
        streams.add(stream)
        with stream.reading(-1) as reader:
            stream.finish([b"data: answer"])
            streams.keep(stream)
            await reader.next()
            if stream is delivered:
                await reader.next()
        streams.forget_soon(stream)
    await asyncio.sleep(0.05)
    assert streams.find("delivered") is None
    assert streams.find("lost") is lost
    streams.close()


async def test_an_answer_that_was_delivered_and_made_room_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "MAX_ENDED_OF_A_CHAT", 4 * event_streams.OBJECT_SIZE)
    streams, made = EventStreams(60), list[weakref.ref[EventStream]]()
    for number in range(20):
        await delivered(streams, made, str(number))
    gc.collect()
    assert sum(one() is not None for one in made) <= 4
    streams.close()


async def delivered(streams: EventStreams, made: list[weakref.ref[EventStream]], id: str) -> None:
    stream = stream_of(id)
    made.append(weakref.ref(stream))
    streams.add(stream)
    with stream.reading(-1) as reader:
        stream.finish([b"data: answer"])
        streams.keep(stream)
        await reader.next()
        await reader.next()
    streams.forget_soon(stream)
