"""A journal as one HTML file that replays it, made piece by piece. Everything here blocks.

The template is built with the pages (web/src/replay). What fills it is data: one JSON object a line, in a script
element that does not run, without a character that could end the element.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from cubicle.journal.format import Entry

MARK = b"<!--journal-->"
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

_DATA_URI = re.compile(rb"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})")


class BadTemplate(ValueError):
    """The file that the pages' build made is not one that can be filled."""


def replay_pieces(
    template: bytes, chat: str, made: float, entries: Iterable[Entry], blob: Callable[[str], bytes | None]
) -> Iterator[bytes]:
    """The file, an entry at a time. Raises BadTemplate."""
    before, mark, after = template.partition(MARK)
    if not mark:
        raise BadTemplate("replay.html has no place for a journal")
    yield before
    yield _line({"chat": chat, "made": made})
    sent: set[str] = set()
    for entry in entries:
        for digest, media_type in _blobs(entry):
            if digest not in sent:
                sent.add(digest)
                yield from _picture(digest, media_type, blob(digest))
        yield _line({"n": entry.number, "at": entry.at, "kind": entry.kind, "fields": entry.fields})
    yield after


def _blobs(entry: Entry) -> Iterator[tuple[str, str]]:
    blocks = entry.fields.get("answer") if entry.kind == "end" else None
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict) and isinstance(block.get("blob"), str):
            yield block["blob"], str(block.get("media_type"))


def _picture(digest: str, media_type: str, data: bytes | None) -> Iterator[bytes]:
    """A line for a picture of an answer: a block of its own, or a data: URI in the text."""
    if data is None:
        return
    if media_type in PICTURES:
        yield _line({"blob": digest, "media_type": media_type, "data": base64.b64encode(data).decode()})
    elif found := _DATA_URI.search(data):
        yield _line({"blob": digest, "media_type": found[1].decode(), "data": found[2].decode()})


def _line(fields: Mapping[str, object]) -> bytes:
    """ASCII without `<`: neither `</script` nor `<!--` can stand in it."""
    return json.dumps(fields, separators=(",", ":"), default=str).replace("<", "\\u003c").encode("ascii") + b"\n"
