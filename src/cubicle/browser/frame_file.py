"""A picture of a chat's browser as it is kept for the replay: one file, a line of JSON and then the JPEG. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from cubicle.core.text import one_line
from cubicle.core.untrusted_json import BadJson, parse_object

MAX_PICTURE = 512 * 1024
MAX_HEADER = 4096
_MAX_TEXT = 300
_NAME = re.compile(r"(\d{13})-([0-9a-f]{32})\.frame")
_JPEG = b"\xff\xd8\xff"


class BadFrame(ValueError):
    """The bytes are no picture that can be kept, or are no longer what they were."""


@dataclass(frozen=True, slots=True)
class FrameName:
    """When it was taken, in milliseconds since 1970, and the digest of what the file holds."""

    at: int
    digest: str

    def __str__(self) -> str:
        return f"{self.at:013}-{self.digest}.frame"

    @property
    def id(self) -> str:
        """How a URL names it."""
        return f"{self.at:013}-{self.digest}"

    @classmethod
    def of(cls, name: str) -> FrameName | None:
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), match[2]) if match else None

    @classmethod
    def of_id(cls, id: str) -> FrameName | None:
        return cls.of(f"{id}.frame")


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """What is said of a picture."""

    width: int
    height: int
    url: str
    """Without query, fragment and password: those often hold what is nobody else's."""
    title: str


def facts_of(width: float, height: float, url: str, title: str) -> FrameFacts:
    """From what a browser says, which is the sandbox's word."""
    return FrameFacts(_side(width), _side(height), shown_url(url), one_line(shown_title(url, title), _MAX_TEXT))


def shown_title(url: str, title: str) -> str:
    """The title of a page; empty for one that has none. A browser then says its address instead, query and all."""
    return "" if unquote(title[:8192]) in unquote(url[:8192]) else title


def shown_url(url: str) -> str:
    """The part of an address that is kept."""
    try:
        parts = urlsplit(url[:8192])
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https", "file", "about", "chrome"):
        return one_line(f"{parts.scheme}:" if parts.scheme else "", _MAX_TEXT)
    shown_host = f"[{host}]" if ":" in host else host
    place = f"//{shown_host}{port}" if parts.netloc or parts.scheme == "file" else ""
    return one_line(f"{parts.scheme}:{place}{parts.path}", _MAX_TEXT)


def pack(at: float, facts: FrameFacts, picture: bytes) -> tuple[FrameName, bytes]:
    """The name and the content of the file. Raises BadFrame."""
    if not picture.startswith(_JPEG) or len(picture) > MAX_PICTURE:
        raise BadFrame("This is no JPEG of a size that is kept.")
    header = {"w": facts.width, "h": facts.height, "url": facts.url, "title": facts.title}
    content = json.dumps(header, separators=(",", ":")).encode() + b"\n" + picture
    return FrameName(int(at * 1000), _digest(content)), content


def unpack_facts(start: bytes) -> FrameFacts:
    """From the first bytes of a file. Raises BadFrame."""
    line, ended, _ = start[:MAX_HEADER].partition(b"\n")
    try:
        if not ended:
            raise BadJson("it has no end")
        said: dict[str, Any] = parse_object(line, max_size=MAX_HEADER, max_values=16)
    except BadJson as error:
        raise BadFrame(f"The line before the picture cannot be read: {error}") from None
    url, title = said.get("url"), said.get("title")
    return facts_of(
        _number(said.get("w")),
        _number(said.get("h")),
        url if isinstance(url, str) else "",
        title if isinstance(title, str) else "",
    )


def unpack_picture(name: FrameName, content: bytes) -> bytes:
    """The JPEG. Raises BadFrame, also when the file is not what was written."""
    _, ended, picture = content.partition(b"\n")
    if not ended or _digest(content) != name.digest or not picture.startswith(_JPEG):
        raise BadFrame("The picture is not what was written.")
    return picture


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _side(value: float) -> int:
    return int(min(max(value, 1), 20_000))


def _number(value: object) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6 else 1.0
