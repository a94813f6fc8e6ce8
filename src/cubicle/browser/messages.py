"""What a viewer of the live browser may say: a closed list, every field checked and bounded."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

MAX_MESSAGE = 1024**2
_CURSORS = """
default pointer text vertical-text crosshair help wait progress move grab grabbing copy alias cell context-menu no-drop
not-allowed zoom-in zoom-out all-scroll col-resize row-resize n-resize e-resize s-resize w-resize ne-resize nw-resize
se-resize sw-resize ew-resize ns-resize nesw-resize nwse-resize
"""
CURSORS = frozenset(_CURSORS.split())
"""Shapes that a page may give the mouse. Not `none`: whoever drives sees where the mouse is."""
_LOCAL_FOLDERS = ("/home/assistant/", "/mnt/user-data/", "/tmp/")  # noqa: S108 — paths of the sandbox

Coordinate = Annotated[float, Field(ge=-100, le=20_000, allow_inf_nan=False)]
Delta = Annotated[float, Field(ge=-100_000, le=100_000, allow_inf_nan=False)]
Modifiers = Annotated[int, Field(ge=0, le=15)]
Id = Annotated[str, Field(max_length=100)]
Address = Annotated[str, Field(max_length=8192)]
Index = Annotated[int, Field(ge=0, le=100_000)]


class BadViewerMessage(ValueError):
    """Not a message of the list."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Ack(_Message):
    type: Literal["ack"]
    seq: Annotated[int, Field(ge=0, le=2**53)]


class View(_Message):
    type: Literal["view"]
    width: Annotated[float, Field(ge=0, le=20_000, allow_inf_nan=False)]
    visible: bool


class Look(_Message):
    """`tab`: the one to be shown to this viewer alone; empty: the one that everybody follows."""

    type: Literal["look"]
    tab: Id = ""


class Name(_Message):
    type: Literal["name"]
    name: Annotated[str, Field(max_length=100)]


class Control(_Message):
    """`viewer`: to whom control is given, or whose question is declined."""

    type: Literal["control"]
    action: Literal["take", "return", "keep", "ask", "give", "decline"]
    name: Annotated[str, Field(max_length=100)] = ""
    viewer: Id = ""


class Mouse(_Message):
    type: Literal["mouse"]
    event: Literal["move", "down", "up"]
    x: Coordinate
    y: Coordinate
    button: Literal["none", "left", "middle", "right", "back", "forward"] = "none"
    buttons: Annotated[int, Field(ge=0, le=31)] = 0
    clicks: Annotated[int, Field(ge=0, le=3)] = 0
    modifiers: Modifiers = 0


class Wheel(_Message):
    type: Literal["wheel"]
    x: Coordinate
    y: Coordinate
    dx: Delta
    dy: Delta
    modifiers: Modifiers = 0


class Key(_Message):
    type: Literal["key"]
    event: Literal["down", "up"]
    key: Annotated[str, Field(min_length=1, max_length=32)]
    code: Annotated[str, Field(max_length=32)]
    location: Annotated[int, Field(ge=0, le=3)] = 0
    modifiers: Modifiers = 0
    repeat: bool = False


class Text(_Message):
    type: Literal["text"]
    text: Annotated[str, Field(max_length=10_000)]


class Composition(_Message):
    type: Literal["composition"]
    text: Annotated[str, Field(max_length=10_000)]
    start: Index = 0
    end: Index = 0


class Paste(_Message):
    type: Literal["paste"]
    text: Annotated[str, Field(max_length=MAX_MESSAGE)]


class Copy(_Message):
    type: Literal["copy"]
    cut: bool = False


class Nav(_Message):
    type: Literal["nav"]
    action: Literal["go", "back", "forward", "reload", "stop"]
    url: Address = ""

    @field_validator("url")
    @classmethod
    def _allowed(cls, url: str) -> str:
        return allowed(url)


class TabAction(_Message):
    type: Literal["tab"]
    action: Literal["open", "close", "activate"]
    id: Id = ""
    url: Address = ""

    @field_validator("url")
    @classmethod
    def _allowed(cls, url: str) -> str:
        return allowed(url)


class Dialog(_Message):
    type: Literal["dialog"]
    id: Id
    accept: bool
    text: Annotated[str, Field(max_length=10_000)] = ""


class Select(_Message):
    type: Literal["select"]
    id: Id
    chosen: Annotated[list[Index], Field(max_length=1000)] | None


class Picker(_Message):
    type: Literal["picker"]
    id: Id
    value: Annotated[str, Field(max_length=100)] | None


class Files(_Message):
    type: Literal["files"]
    id: Id
    names: Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(max_length=100)] | None

    @field_validator("names")
    @classmethod
    def _below_the_uploads(cls, names: list[str] | None) -> list[str] | None:
        for name in names or ():
            if name.startswith("/") or "\0" in name or ".." in name.split("/"):
                raise ValueError("a name below the uploads folder")
        return names


Always = Ack | View | Look | Name | Control
Driving = Mouse | Wheel | Key | Text | Composition | Paste | Copy | Nav | TabAction | Dialog | Select | Picker | Files
Said = Always | Driving

_SAID: TypeAdapter[Said] = TypeAdapter(Annotated[Said, Field(discriminator="type")])


def parse(text: str | bytes) -> Said:
    """The message that a viewer sent. Raises BadViewerMessage, without a word of what was in it."""
    try:
        return _SAID.validate_json(text)
    except ValidationError:
        raise BadViewerMessage("not a message of the live view") from None


def allowed(url: str) -> str:
    """An address that a person may open: web pages, about:blank, and files of the chat's own folders."""
    if not url or url == "about:blank":
        return url
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme.lower(), parts.hostname
    except ValueError:
        raise ValueError("not an address") from None
    if scheme in ("http", "https") and host:
        return url
    path = unquote(parts.path)
    if scheme == "file" and not host and path.startswith(_LOCAL_FOLDERS) and ".." not in path.split("/"):
        return url
    raise ValueError("http, https, about:blank, or a file of the chat's folders")


def cursor(value: Any) -> str:
    """The shape that a page asks for; the one it falls back to where it asks for a picture."""
    keyword = value.rpartition(",")[2].strip() if isinstance(value, str) else ""
    return keyword if keyword in CURSORS else "default"


def short(value: Any, most: int = 1000) -> str:
    """Hostile text, as much of it as a page needs."""
    return value[:most].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def number(value: Any, low: float = 0.0, high: float = 100_000.0, otherwise: float = 0.0) -> float:
    """A hostile number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return otherwise
    return min(max(float(value), low), high)
