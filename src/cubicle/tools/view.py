"""view: shows a file or a directory of the sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cubicle.core.image_header import read_header
from cubicle.core.media_types import looks_binary
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import READABLE_ROOTS, Machine
from cubicle.prompt.workspace import Workspace
from cubicle.settings import ViewImages
from cubicle.tools.arguments import Arguments
from cubicle.tools.base import Answer, Call, fail, say, schema
from cubicle.tools.errors import sentence
from cubicle.tools.folders import show_folder
from cubicle.tools.line_numbers import WHOLE, BadRange, LineRange, Numbering, OutOfRange
from cubicle.tools.media import Unreadable, document_text, is_document, show_bytes, show_image
from cubicle.tools.output import Decoder

_START = 64 * 1024


class ViewTool:
    """Text with line numbers, folders as trees, images small, documents as their text, the rest as base64."""

    name = "view"
    description = (
        "Look at a file or directory of the sandbox. Text comes with line numbers; `view_range` shows a part of a long "
        "file. A directory comes as a tree of two levels with sizes. Images come as a small picture, PDF, Word, Excel "
        "and PowerPoint files as their text, other binary files as base64. Use it before you edit a file, to read what "
        "the user uploaded (/mnt/user-data/uploads), and to read a skill (/mnt/skills/.../SKILL.md) before you follow "
        "it. To search in files, or to see many of them, use bash_tool with grep or rg."
    )
    outlives_caller = False
    schema = schema(
        {
            "path": {"type": "string", "description": "Absolute path inside the sandbox"},
            "view_range": {
                "type": "array",
                "items": {"type": "integer"},
                "minItems": 2,
                "maxItems": 2,
                "description": "Start and end line, 1-indexed, inclusive; an end of -1 is the end of the file",
            },
        },
        required=("path",),
    )

    def __init__(self, workplace: Workspace, images: ViewImages) -> None:
        self._workplace = workplace
        self._images = images

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        path = arguments.path("path")
        pair = arguments.optional_pair("view_range")
        try:
            lines = WHOLE if pair is None else LineRange.parse(*pair)
            async with self._workplace.lease(call.caller) as machine:
                return await self._show(machine, path, lines)
        except MachineError as error:
            return fail(sentence(error, path, READABLE_ROOTS))
        except (BadRange, OutOfRange, Unreadable) as error:
            return fail(str(error))

    async def _show(self, machine: Machine, path: str, lines: LineRange) -> Answer:
        """A short file takes one question to the guest."""
        try:
            async with machine.read(path, length=_START, roots=READABLE_ROOTS) as reader:
                start = b"".join([chunk async for chunk in reader])
                size = reader.stat.size
        except MachineError as error:
            if error.code != ErrorCode.IS_DIRECTORY:
                raise
            return say(await show_folder(machine, path))
        if header := read_header(start):
            return await show_image(machine, path, size, header, self._images)
        if is_document(path, start):
            return say(await _numbered(document_text(machine, path), lines))
        if looks_binary(start):
            return say(await show_bytes(machine, path, size))
        if not size and lines == WHOLE:
            return say("(the file is empty)")
        if size == len(start):
            return say(await _numbered(_once(start), lines))
        async with machine.read(path, roots=READABLE_ROOTS) as reader:
            return say(await _numbered(aiter(reader), lines))


async def _once(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


async def _numbered(chunks: AsyncIterator[bytes], lines: LineRange) -> str:
    """Numbered, in range, capped; reads no further than it must."""
    numbering, decoder = Numbering(lines), Decoder()
    async for chunk in chunks:
        numbering.feed(decoder.feed(chunk))
        if numbering.done:
            break
    else:
        numbering.feed(decoder.finish())
    return numbering.finish()
