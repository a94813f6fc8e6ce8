"""What comes on a channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from cubicle.guest.messages import Message

LARGE = 64 * 1024
_E = TypeVar("_E", bound=Message)
_A = TypeVar("_A", bound=Message)


@dataclass(frozen=True, slots=True)
class Data:
    stream: int
    bytes: bytes

    def takes(self, more: Data) -> bool:
        return self.stream == more.stream and len(self.bytes) < LARGE


@dataclass(frozen=True, slots=True)
class Event(Generic[_E]):
    message: _E


@dataclass(frozen=True, slots=True)
class Eof:
    stream: int


@dataclass(frozen=True, slots=True)
class End(Generic[_A]):
    answer: _A
