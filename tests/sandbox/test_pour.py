"""What a thread makes of a socket."""

import hashlib
import os
import socket

import pytest

from cubicle.sandbox.pour import BrokeOff, Pour


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def test_exactly_the_rest_is_taken(ends):
    ours, theirs = ends
    theirs.sendall(b"the rest, and more")
    taken = []
    pour = Pour(ours.fileno(), len(b"the rest"))
    digest = await pour.into(lambda piece: taken.append(bytes(piece)), b"first, ")
    pour.close()
    assert b"".join(taken) == b"first, the rest"
    assert digest == hashlib.sha256(b"first, the rest").hexdigest()
    assert ours.recv(100) == b", and more"


async def test_a_client_that_says_nothing_any_more_is_given_up(ends):
    pour = Pour(ends[0].fileno(), 10, idle=0.05)
    with pytest.raises(BrokeOff):
        await pour.into(lambda piece: None, b"")
    pour.close()


async def test_a_client_that_ends_too_early_is_given_up(ends):
    ours, theirs = ends
    theirs.sendall(b"half")
    theirs.shutdown(socket.SHUT_WR)
    pour = Pour(ours.fileno(), 10)
    with pytest.raises(BrokeOff):
        await pour.into(lambda piece: None, b"")
    pour.close()


async def test_what_cannot_be_written_is_said_and_how_much_was_taken_is_known(ends):
    ours, theirs = ends
    theirs.sendall(b"half")

    def full(piece):
        raise OSError(28, os.strerror(28))

    pour = Pour(ours.fileno(), 10)
    with pytest.raises(OSError, match="No space"):
        await pour.into(full, b"")
    pour.close()
    assert pour.rest == 6
