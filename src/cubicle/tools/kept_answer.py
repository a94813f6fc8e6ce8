"""Answers of tools in the journal: what was given to the client, so that it can be given again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from cubicle.core.chat import Chat
from cubicle.journal import format
from cubicle.journal.journal import Journal
from cubicle.tools.base import Answer, Block, ImageContent, TextContent
from cubicle.tools.output import joined

TEXT = "text/plain; charset=utf-8"
MAX_INLINE = 64 * 1024
"""Bytes that the texts of an answer may take in the line itself; what is longer is a blob."""


def keep_blocks(journal: Journal, chat: Chat, answer: Answer, printed: str) -> list[dict[str, Any]]:
    """The blocks of an answer as the `end` entry has them, which comes next.

    `{"text": …}`; `{"after_output": true, "text": …}`: the text follows the output (head, cut and tail of the entry);
    `{"blob": SHA-256, "media_type": …}`, with `"as_text": true` where the client is given a data: URI;
    `{"left_out": bytes, "media_type": …}`: it was too large to be kept.
    """
    kept: list[dict[str, Any]] = []
    room = MAX_INLINE
    for place, block in enumerate(answer.blocks):
        if isinstance(block, TextContent):
            kept.append(_text(journal, chat, block.text, printed if place == 0 else "", room))
            if place + 1 < len(answer.blocks):
                room -= format.size(kept[-1])
        else:
            blob = _blob(journal, chat, block.data, block.media_type)
            kept.append({**blob, "as_text": True} if block.as_text else blob)
    return kept


def _text(journal: Journal, chat: Chat, text: str, printed: str, room: int) -> dict[str, Any]:
    if printed and text.startswith(printed) and _fits(after := text[len(printed) :], room):
        return {"after_output": True, "text": after}
    if _fits(text, room):
        return {"text": text}
    return _blob(journal, chat, text.encode("utf-8", "surrogatepass"), TEXT)


def _fits(text: str, room: int) -> bool:
    return format.most_size(text) <= room or (len(text) <= room and format.size(text) <= room)


def _blob(journal: Journal, chat: Chat, data: bytes, media_type: str) -> dict[str, Any]:
    if len(data) > journal.max_blob:
        return {"left_out": len(data), "media_type": media_type}
    return {"blob": journal.keep_blob(chat, data), "media_type": media_type}


def kept_pictures(journal: Journal, answer: Answer) -> tuple[str, ...]:
    """The hashes of the pictures of an answer that the journal keeps."""
    if not journal.keeps:
        return ()
    pictures = (block.data for block in answer.blocks if isinstance(block, ImageContent))
    return tuple(hashlib.sha256(data).hexdigest() for data in pictures if len(data) <= journal.max_blob)


async def read_answer(journal: Journal, chat: Chat, end: Mapping[str, Any]) -> Answer | None:
    """The answer that an `end` entry has; None if it is not kept whole."""
    kept = end.get("answer")
    if not isinstance(kept, list) or "shortened" in end:
        return None
    blocks = [await _read_block(journal, chat, one, end) for one in kept]
    whole = tuple(block for block in blocks if block is not None)
    return Answer(whole, error=end.get("error") is True) if len(whole) == len(blocks) else None


async def _read_block(journal: Journal, chat: Chat, kept: Any, end: Mapping[str, Any]) -> Block | None:
    if not isinstance(kept, dict):
        return None
    if isinstance(text := kept.get("text"), str):
        before = printed_text(end) if kept.get("after_output") else ""
        return TextContent(before + text)
    digest, media_type = kept.get("blob"), kept.get("media_type")
    if not isinstance(digest, str) or not isinstance(media_type, str):
        return None
    data = await journal.blob(chat, digest)
    if data is None:
        return None
    if media_type == TEXT:
        return TextContent(data.decode("utf-8", "surrogatepass"))
    return ImageContent(data, media_type, as_text=kept.get("as_text") is True)


def printed_text(end: Mapping[str, Any]) -> str:
    """The output of a call, from the two ends that are kept of it."""
    head, tail, cut = end.get("head", ""), end.get("tail", ""), end.get("cut", 0)
    return joined(str(head), cut if isinstance(cut, int) else 0, str(tail))
