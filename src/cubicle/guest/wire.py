"""The words that host and guest speak: frames on one multiplexed byte stream.

A frame is a 12-byte header and a payload of at most `MAX_PAYLOAD` bytes. Channels are numbered by the side that
opens them: the host takes odd numbers, the guest even ones. Each direction of a channel has a window of `WINDOW`
data bytes; the receiver gives credit back as it consumes, so that no side ever buffers without bound.

    OPEN    json  first frame of a channel: {"op": "...", ...}
    DATA    raw   bytes of a stream; `stream` says which (see below)
    CREDIT  u32   the sender may send so many more data bytes on this channel
    EVENT   json  something to know while the channel is open
    EOF     -     no more DATA of this stream from this side
    END     json  the answer; the channel is closed
    FAIL    json  {"error": code, "message": text}; the channel is closed
    CANCEL  -     the opener no longer wants the answer; the guest frees the channel

Streams: for `run`, 0 is the command's input (host to guest), 1 its output and 2 its error output. Everything else
uses 0, and `edit` uses 0 for the old and 1 for the new text.
"""

from __future__ import annotations

import json
import struct

VERSION = 1
HEADER = struct.Struct(">IIBBH")  # payload length, channel, kind, stream, reserved
MAX_PAYLOAD = 256 * 1024
WINDOW = 1024 * 1024
MAX_CHANNELS = 4096

OPEN, DATA, CREDIT, EVENT, EOF, END, FAIL, CANCEL = range(1, 9)
KINDS = frozenset(range(1, 9))
NAMES = {1: "OPEN", 2: "DATA", 3: "CREDIT", 4: "EVENT", 5: "EOF", 6: "END", 7: "FAIL", 8: "CANCEL"}

_CREDIT = struct.Struct(">I")


class WireError(Exception):
    """The other side broke the rules of the wire; the connection cannot go on."""


def frame(channel: int, kind: int, payload: bytes = b"", stream: int = 0) -> bytes:
    """One frame as bytes."""
    if len(payload) > MAX_PAYLOAD:
        raise WireError("a frame of %d bytes is over the limit of %d" % (len(payload), MAX_PAYLOAD))
    return HEADER.pack(len(payload), channel, kind, stream, 0) + payload


def message(channel: int, kind: int, /, **fields: object) -> bytes:
    """One frame whose payload is JSON."""
    return frame(channel, kind, json.dumps(fields, separators=(",", ":")).encode())


def credit(channel: int, amount: int) -> bytes:
    """One frame that gives credit back."""
    return HEADER.pack(4, channel, CREDIT, 0, 0) + _CREDIT.pack(amount)


def read_credit(payload: bytes | memoryview) -> int:
    if len(payload) != 4:
        raise WireError("a credit frame has four bytes")
    amount: int = _CREDIT.unpack(payload)[0]
    return amount


def read_message(payload: bytes | memoryview) -> dict[str, object]:
    """The JSON object of a frame; anything else is a broken wire."""
    try:
        fields = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise WireError("a frame does not hold JSON") from error
    if not isinstance(fields, dict):
        raise WireError("a frame does not hold a JSON object")
    return fields


def read_header(data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[int, int, int, int]:
    """(length, channel, kind, stream) of the header at offset, checked."""
    length, channel, kind, stream, _ = HEADER.unpack_from(data, offset)
    if length > MAX_PAYLOAD:
        raise WireError("a frame of %d bytes is over the limit of %d" % (length, MAX_PAYLOAD))
    if kind not in KINDS:
        raise WireError("a frame of the unknown kind %d" % kind)
    return length, channel, kind, stream
