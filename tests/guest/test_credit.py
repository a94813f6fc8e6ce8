"""Credit from the guest to the host: little of it, and always enough."""

from __future__ import annotations

import socket

import pytest

from cubicle.guest import operations, wire
from cubicle.guest.connection import GuestChannel, GuestConnection
from cubicle.guest.loop import Loop
from tests.support.frames import message


class Take(GuestChannel):
    REQUEST = operations.Ping


def test_small_messages_wake_nobody_and_a_quarter_of_the_window_is_told_at_once() -> None:
    loop = Loop()
    host, guest = socket.socketpair()
    with host, guest:
        host.setblocking(False)
        link = GuestConnection(loop, guest, {"take": Take}.get, lambda link: None)
        host.sendall(message(1, wire.OPEN, op="take"))
        for _ in range(10):
            host.sendall(wire.frame(1, wire.DATA, b"small"))
        loop.turn()
        with pytest.raises(BlockingIOError):
            host.recv(1)
        taken, whole = 50, wire.WINDOW * 3
        granted = 0
        while taken < whole:  # more than one window: it only gets there by what is given back
            part = min(16 * 1024, whole - taken, wire.WINDOW + granted - taken)
            assert part > 0
            host.sendall(wire.frame(1, wire.DATA, bytes(part)))
            taken += part
            loop.turn()
            try:
                frames = host.recv(1024)
            except BlockingIOError:
                continue
            assert len(frames) == 16
            granted += wire.read_credit(frames[12:])
        assert granted >= whole - wire.WINDOW
        link.close()
