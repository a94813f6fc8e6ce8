"""How `view` shows what is not text. Hostile bytes are parsed by programs in the sandbox, never by the service."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

from anyio import to_thread

from cubicle.core.image_header import ImageHeader, read_header
from cubicle.core.media_types import media_type
from cubicle.guest.operations import Exit
from cubicle.machine.machine import READABLE_ROOTS, Machine
from cubicle.settings import ViewImages
from cubicle.tools.base import Answer, ImageContent, TextContent
from cubicle.tools.folders import human_size
from cubicle.tools.output import OUTPUT_CAP, joined
from cubicle.tools.scripts import program

MAX_SIDE = 1280
MAX_THUMBNAIL = 200 * 1024
_LIMIT = 90.0
_OFFICE = (".docx", ".xlsx", ".pptx")


class Unreadable(Exception):
    """The sandbox could not make text of the file; the message says what else to do."""


def is_document(path: str, start: bytes) -> bool:
    if start.startswith(b"%PDF-"):
        return True
    return start.startswith(b"PK\x03\x04") and path.lower().endswith(_OFFICE)


async def document_text(machine: Machine, path: str) -> AsyncIterator[bytes]:
    """The text of a PDF or office file, extracted in the sandbox."""
    if path.lower().endswith(_OFFICE):
        command = ["python3", "-I", "-c", await _program("office_text"), path]
    else:
        command = [
            "/bin/sh",
            "-c",
            'command -v pdftotext >/dev/null || exit 127; exec pdftotext -layout "$1" -',
            "sh",
            path,
        ]
    errors, blank = b"", True
    async with machine.run(command, timeout=_LIMIT, merge=False) as process:
        async for stream, chunk in process.output:
            if stream == 1:
                blank = blank and not chunk.strip()
                yield chunk
            else:
                errors = (errors + chunk)[-1000:]
        _check(await process.wait(), errors, path)
    if blank:
        raise Unreadable(
            f"{path} holds no text. If its pages are pictures (a scan), make images of them with bash_tool "
            "(`pdftoppm -r 100 -png`) and view those."
        )


def _check(exit: Exit, errors: bytes, path: str) -> None:
    if exit.timed_out:
        raise Unreadable(
            f"Extracting the text of {path} took more than {_LIMIT:g} s. Work on it in parts with bash_tool."
        )
    if exit.code == 127:
        raise Unreadable(f"This sandbox has no tool to extract text from {path}. Try a Python library with bash_tool.")
    if exit.code != 0:
        reason = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or ["unknown"]
        raise Unreadable(f"The text of {path} could not be extracted ({reason[0][:200]}). Look at it with bash_tool.")


async def show_bytes(machine: Machine, path: str, size: int) -> str:
    """One line about the file, then its bytes as base64; of a large one the two ends."""
    half = OUTPUT_CAP // 2 // 4 * 3
    line = f"{path}: {media_type(path)}, binary, {human_size(size)}; base64:\n"
    if size <= 2 * half:
        return line + base64.b64encode(await _slice(machine, path, 0, size)).decode()
    start = await _slice(machine, path, 0, half)
    end = await _slice(machine, path, (size - half + 2) // 3 * 3, half)
    encoded = (size + 2) // 3 * 4
    head, tail = base64.b64encode(start).decode(), base64.b64encode(end).decode()
    return line + joined(head, encoded - len(head) - len(tail), tail)


async def _slice(machine: Machine, path: str, offset: int, length: int) -> bytes:
    async with machine.read(path, offset=offset, length=length, roots=READABLE_ROOTS) as reader:
        return b"".join([chunk async for chunk in reader])


async def show_image(machine: Machine, path: str, size: int, header: ImageHeader, style: ViewImages) -> Answer:
    """One line about the image, then a picture of at most 1,280 pixels a side and 200 KB."""
    pixels = f"{header.width} x {header.height} pixels, " if header.width else ""
    line = f"{path}: {header.kind.upper()} image, {pixels}{human_size(size)}"
    picture = await _picture(machine, path, size, header)
    if picture is None:
        return Answer(
            (TextContent(f"{line}. This sandbox could not make a small picture of it; use bash_tool to work with it."),)
        )
    data, kind = picture
    return Answer((TextContent(line), ImageContent(data, kind, as_text=style is ViewImages.TEXT)))


async def _picture(machine: Machine, path: str, size: int, header: ImageHeader) -> tuple[bytes, str] | None:
    """The image itself where it is small enough, else a thumbnail that the sandbox makes."""
    fits = 0 < max(header.width, header.height) <= MAX_SIDE and size <= MAX_THUMBNAIL
    if fits and header.kind in ("png", "jpeg"):
        return await _slice(machine, path, 0, MAX_THUMBNAIL), header.media_type
    command = ["python3", "-I", "-c", await _program("thumbnail"), path, str(MAX_SIDE), str(MAX_THUMBNAIL)]
    data = bytearray()
    async with machine.run(command, timeout=_LIMIT, merge=False) as process:
        async for stream, chunk in process.output:
            if stream == 1 and len(data) <= MAX_THUMBNAIL:
                data += chunk
        exit = await process.wait()
    made = read_header(bytes(data))
    if exit.code != 0 or made is None or made.kind not in ("png", "jpeg") or len(data) > MAX_THUMBNAIL:
        return None
    return bytes(data), made.media_type


_programs: dict[str, str] = {}


async def _program(name: str) -> str:
    """The text of a program that runs in the sandbox, read once."""
    if name not in _programs:
        _programs[name] = await to_thread.run_sync(program, name)
    return _programs[name]
