"""The end of a file, and what is added to it: for logs that grow. To follow one keeps no sandbox up."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from cubicle.files.browse import FilePlace
from cubicle.machine.machine import Machine

FIRST_BYTES = 256 * 1024
"""Of the end of the file, to begin with."""
_PIECE = 256 * 1024
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the file. `reset`: what came before it is of another file, or was cut off."""

    start: int
    text: str
    size: int
    reset: bool


async def follow(machine: Machine, place: FilePlace, over: asyncio.Event) -> AsyncGenerator[Piece | None]:
    """Pieces as they come; None now and then when nothing has. Ends when `over` is set. MachineError, Gone."""
    at, inode, quiet = 0, -1, 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while not over.is_set():
        stat = await machine.stat(place.full, roots=place.folders)
        reset = stat.inode != inode or stat.size < at
        if reset:
            at, inode = max(0, stat.size - FIRST_BYTES), stat.inode
            decoder.reset()
        if reset or stat.size > at:
            data = await _read(machine, place, at)
            yield Piece(at, decoder.decode(_whole_lines(data) if reset and at else data), stat.size, reset)
            at += len(data)
            quiet = 0
            if len(data) == _PIECE:
                continue
        else:
            quiet += 1
            if quiet % 40 == 0:
                yield None
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await over.wait()
        except TimeoutError:
            pass


async def _read(machine: Machine, place: FilePlace, at: int) -> bytes:
    async with machine.read(place.full, offset=at, length=_PIECE, roots=place.folders) as reader:
        return b"".join([chunk async for chunk in reader])


def _whole_lines(data: bytes) -> bytes:
    """Less the line that begins before it."""
    return data.partition(b"\n")[2] or data
