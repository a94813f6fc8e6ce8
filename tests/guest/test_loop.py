"""The guest's loop goes on, whatever one of its parts does."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from cubicle.guest import operations, wire
from cubicle.guest.connection import GuestChannel, GuestConnection
from cubicle.guest.loop import READ, Loop
from tests.support.frames import message


def broken(*_: Any) -> None:
    raise ZeroDivisionError("nobody foresaw this")


def test_what_fails_is_told_and_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    loop = Loop()
    reader, writer = os.pipe()
    called: list[str] = []
    try:
        os.write(writer, b"x")
        loop.watch(reader, READ, broken)
        loop.soon(broken)
        loop.soon(lambda: called.append("soon"))
        loop.later(0, broken)
        loop.later(0, lambda: called.append("later"))
        loop.turn()
        assert called == ["soon", "later"]
        assert capsys.readouterr().err.count("\nZeroDivisionError: nobody") == 3
        loop.later(0.01, lambda: called.append("again"))
        loop.turn()  # the descriptor is still readable, and is not asked any more
        assert called[-1] == "again"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_channel_that_fails_ends_its_link_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(GuestChannel):
        REQUEST = operations.Ping

        def begin(self, request: operations.Ping) -> None:
            broken()

    class Sound(GuestChannel):
        REQUEST = operations.Ping

        def begin(self, request: operations.Ping) -> None:
            self.end(operations.Listed(complete=True))

    loop = Loop()
    pairs = [socket.socketpair() for _ in range(2)]
    ended: list[GuestConnection] = []
    links = [GuestConnection(loop, theirs, {"fail": Failing, "do": Sound}.get, ended.append) for _, theirs in pairs]
    try:
        pairs[0][0].sendall(message(1, wire.OPEN, op="fail"))
        pairs[1][0].sendall(message(1, wire.OPEN, op="do"))
        for ours, _ in pairs:
            ours.settimeout(10)
        while len(ended) < 1:
            loop.turn()
        loop.later(0, lambda: None)
        loop.turn()
        assert ended == links[:1]
        assert pairs[0][0].recv(100) == b""
        assert b'{"complete":true}' in pairs[1][0].recv(100)
        assert "nobody foresaw this" in capsys.readouterr().err
    finally:
        links[1].close()
        for ours, _ in pairs:
            ours.close()


def test_cancelled_timers_do_not_pile_up_until_their_time() -> None:
    loop = Loop()
    rung: list[int] = []
    loop.later(0, lambda: rung.append(1))
    for _ in range(20_000):
        loop.later(3600, lambda: rung.append(2)).cancel()
    last = loop.later(0, lambda: rung.append(3))
    assert len(loop._timers) < 1000
    loop.turn()
    assert rung == [1, 3]
    assert last.callback is not None
