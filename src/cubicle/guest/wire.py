"""The words that host and guest speak: frames on one multiplexed byte stream.

A frame is a 12-byte header and a payload of at most `MAX_PAYLOAD` bytes. Channels are numbered by the side that
opens them: the host takes odd numbers, the guest even ones. Each direction of a channel has a window of `WINDOW`
data bytes; the receiver gives credit back as it consumes, so that no side ever buffers without bound.

    OPEN    json  first frame of a channel: a request (operations.py), with its name as `op`
    DATA    raw   bytes of a stream; `stream` says which (see below)
    CREDIT  u32   the sender may send so many more data bytes on this channel
    EVENT   json  something to know while the channel is open: the request's event
    EOF     -     no more DATA of this stream from this side
    END     json  the request's answer; the channel is closed
    FAIL    json  operations.Failure; the channel is closed
    CANCEL  -     the opener no longer wants the answer; the guest frees the channel

Versions: each side speaks those from OLDEST_VERSION to NEWEST_VERSION. The host says its range in the hello, the guest
answers with the newest one that both speak. A side that says no range speaks version 1 alone.

    1       no ranges in the hello
    2       ranges in the hello
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import Enum
else:

    class _Members(type):
        """Makes the texts of a class its members, as `enum` does, which takes 8 ms of the guest's start."""

        def __init__(cls, name, bases, namespace):
            super().__init__(name, bases, namespace)
            texts = {key: text for key, text in namespace.items() if key.isupper() and type(text) is str}
            cls._value2member_map_ = {text: str.__new__(cls, text) for text in texts.values()}
            for key, text in texts.items():
                setattr(cls, key, cls._value2member_map_[text])

        def __call__(cls, value):
            if value not in cls._value2member_map_:
                raise ValueError("%r is not a valid %s" % (value, cls.__name__))
            return cls._value2member_map_[value]

        def __iter__(cls):
            return iter(cls._value2member_map_.values())

    class Enum(metaclass=_Members):
        @property
        def value(self):
            return str.__str__(self)


OLDEST_VERSION, NEWEST_VERSION = 1, 2
HEADER = struct.Struct(">IIBBH")  # payload length, channel, kind, stream, reserved
MAX_PAYLOAD = 256 * 1024
WINDOW = 1024 * 1024
MAX_CHANNELS = 4096

OPEN, DATA, CREDIT, EVENT, EOF, END, FAIL, CANCEL = range(1, 9)
KINDS = frozenset(range(1, 9))
NAMES = {1: "OPEN", 2: "DATA", 3: "CREDIT", 4: "EVENT", 5: "EOF", 6: "END", 7: "FAIL", 8: "CANCEL"}

_CREDIT = struct.Struct(">I")


class ErrorCode(str, Enum):
    """Why a request could not be done."""

    BAD_COMMAND = "bad-command"
    BAD_CWD = "bad-cwd"
    BAD_NAME = "bad-name"
    BAD_REQUEST = "bad-request"
    BUSY = "busy"
    CHANGED = "changed"
    EXISTS = "exists"
    INTERRUPTED = "interrupted"
    IO = "io"
    IS_DIRECTORY = "is-directory"
    MANY_MATCHES = "many-matches"
    NO_MATCH = "no-match"
    NO_PROCESSES = "no-processes"
    NO_SPACE = "no-space"
    NOT_DIRECTORY = "not-directory"
    NOT_FOUND = "not-found"
    NOT_KEPT = "not-kept"
    NOT_REGULAR = "not-regular"
    OUTSIDE = "outside"
    PERMISSION = "permission"
    READ_ONLY = "read-only"
    REFUSED = "refused"
    TAKEN = "taken"
    TOO_BIG = "too-big"
    VERSION = "version"

    __str__ = str.__str__
    __hash__ = str.__hash__

    @classmethod
    def of(cls, value: object) -> ErrorCode:
        """IO for one that this version does not know."""
        known = cls._value2member_map_.get(value) if isinstance(value, str) else None
        return known if isinstance(known, cls) else cls.IO


def common_version(oldest: int, newest: int) -> int | None:
    """The newest version that we and a side with this range speak."""
    version = min(newest, NEWEST_VERSION)
    return version if version >= max(oldest, OLDEST_VERSION) else None


class WireError(Exception):
    """The other side broke the rules of the wire; the connection cannot go on."""


def frame(channel: int, kind: int, payload: bytes = b"", stream: int = 0) -> bytes:
    """One frame as bytes."""
    if len(payload) > MAX_PAYLOAD:
        raise WireError("a frame of %d bytes is over the limit of %d" % (len(payload), MAX_PAYLOAD))
    return HEADER.pack(len(payload), channel, kind, stream, 0) + payload


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
