"""Office files as PDF, by LibreOffice inside the sandbox, where its image has it.

NoOffice       the image has none
Unconvertible  it made no PDF of this file
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cubicle.files.browse import FilePlace
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import HOME, Machine

MAX_PDF = 64 * 1024**2
ENDINGS = frozenset(
    ["doc", "docx", "docm", "odt", "rtf", "xls", "xlsx", "xlsm", "ods", "ppt", "pptx", "pptm", "odp", "odg"]
)
_SECONDS = 90.0
_ABSENT = 127
# Each conversion has a profile of its own: two that run at once would lock each other out. What was made is kept for
# an hour, under a name that another version of the file does not have.
_SCRIPT = r"""
command -v soffice >/dev/null 2>&1 || exit 127
kept=/tmp/.cubicle-office-$(id -u); made="$kept/$2.pdf"
if [ ! -s "$made" ]; then
  mkdir -p -m 700 "$kept" && find "$kept" -name '*.pdf' -mmin +60 -delete
  work=$(mktemp -d) || exit 1
  trap 'rm -rf "$work"' EXIT
  nice soffice --headless --norestore --nolockcheck "-env:UserInstallation=file://$work/profile" \
    --convert-to pdf --outdir "$work" "$1" >/dev/null 2>&1 </dev/null
  set -- "$1" "$2" "$work"/*.pdf
  [ -s "$3" ] && mv -f "$3" "$made" || exit 1
fi
cat "$made"
"""


class NoOffice(Exception):
    """The sandbox has no LibreOffice."""


class Unconvertible(Exception):
    """LibreOffice made no PDF of it."""


@asynccontextmanager
async def converted(machine: Machine, place: FilePlace, version: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """The PDF as it comes; the program is ended with the block. NoOffice, Unconvertible."""
    name = hashlib.sha256(f"{place.full}\n{version}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    command = ["/bin/sh", "-c", _SCRIPT, "sh", place.full, name]
    async with machine.run(command, cwd=HOME, timeout=_SECONDS, merge=False) as process:
        output = (data async for stream, data in process.output if stream == 1)
        first = await anext(output, b"")
        if not first.startswith(b"%PDF"):
            raise NoOffice if (await process.wait()).code == _ABSENT else Unconvertible

        async def pieces() -> AsyncIterator[bytes]:
            sent = len(first)
            yield first
            async for data in output:
                sent += len(data)
                if sent > MAX_PDF:
                    raise MachineError(ErrorCode.TOO_BIG, "The PDF is too large.")
                yield data

        yield pieces()
