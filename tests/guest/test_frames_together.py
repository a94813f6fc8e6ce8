"""What is in no hurry is sent with what comes next: the start of a short command with its end."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from cubicle.guest import connection, operations, wire
from cubicle.guest.connection import GuestChannel, GuestConnection
from cubicle.guest.loop import Loop
from tests.support.frames import message

STARTED = operations.Started(started="one", pid=7, kept=False)


class Run(GuestChannel):
    REQUEST = operations.Ping

    def begin(self, request: operations.Ping) -> None:
        self.event(STARTED, hurries=False)


class Link:
    def __init__(self) -> None:
        self.loop = Loop()
        self.host, guest = socket.socketpair()
        self.host.settimeout(5)
        self.guest = GuestConnection(self.loop, guest, {"run": Run}.get, lambda link: None)

    def open(self, number: int) -> GuestChannel:
        self.host.sendall(message(number, wire.OPEN, op="run"))
        self.loop.turn()
        return self.guest._channels[number]

    def kinds(self) -> list[tuple[int, int]]:
        """Channel and kind of each frame of one read."""
        read, found, at = memoryview(self.host.recv(65536)), [], 0
        while at < len(read):
            length, number, kind, _ = wire.read_header(read, at)
            found.append((number, kind))
            at += wire.HEADER.size + length
        return found


@pytest.fixture
def link() -> Iterator[Link]:
    link = Link()
    yield link
    link.guest.close()
    link.host.close()


def test_the_start_and_the_end_of_a_short_command_are_one_write(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOMENT", 60)
    link.open(1).end(operations.Exit())
    assert link.kinds() == [(1, wire.EVENT), (1, wire.END)]


def test_the_start_is_told_in_a_moment_when_nothing_follows(link: Link) -> None:
    link.open(1)
    began = time.monotonic()
    link.loop.turn()
    assert link.kinds() == [(1, wire.EVENT)]
    assert time.monotonic() - began < 1


def test_output_comes_behind_the_starts_of_all_channels(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOMENT", 60)
    first, second = link.open(1), link.open(3)
    second.data(b"printed")
    first.end(operations.Exit())
    assert link.kinds() == [(1, wire.EVENT), (3, wire.EVENT), (3, wire.DATA), (1, wire.END)]


def test_few_frames_are_held(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOMENT", 60)
    for number in range(1, 129, 2):
        link.open(number)
    assert [kind for _, kind in link.kinds()] == [wire.EVENT] * 64


def test_a_closed_connection_holds_nothing_back(link: Link) -> None:
    link.open(1)
    link.guest.close()
    link.loop.turn()
    assert link.host.recv(1) == b""
