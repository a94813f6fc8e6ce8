"""What was done with the files of a chat, by the entries of its journal. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cubicle.files.browse import ROOTS
from cubicle.files.search_output import place_of
from cubicle.guest.file_changes import MAX_TEXT
from cubicle.journal.format import Entry

Done = Literal["created", "changed", "uploaded", "renamed", "deleted"]
MAX_CHANGES = 300
_MAX_TEXTS = 400_000
"""Characters of all the texts that are told; those of the oldest changes are left out."""
_MAX_PATH = 4096
_DONE: dict[str, Done] = {"saved": "changed", "made": "created", "renamed": "renamed", "deleted": "deleted"}


@dataclass(frozen=True, slots=True)
class PastChange:
    """One change. Its `id` is that of the call, or of a person's own change."""

    id: str
    at: float
    by: Literal["model", "person"]
    tool: str
    done: Done
    path: str
    """As it is in the sandbox."""
    to: str = ""
    size_before: int = 0
    size_after: int = 0
    kept: bool = False
    undone: bool = False
    line: int = 1
    text_before: str | None = None
    text_after: str | None = None

    @property
    def shown(self) -> str:
        """The path by which people open it; empty for one outside of the chat's folders."""
        place = place_of(self.path.encode("utf-8", "surrogateescape"))
        return place[1] if place is not None else ""


def past_changes(entries: Iterable[Entry], since: float = 0.0, limit: int = MAX_CHANGES) -> list[PastChange]:
    """The newest changes since then, the newest first."""
    found: OrderedDict[tuple[str, str, int], PastChange] = OrderedDict()
    tools: OrderedDict[str, str] = OrderedDict()
    for entry in entries:
        if entry.kind == "call":
            tools[_text(entry.fields, "call")] = _text(entry.fields, "tool")
            if len(tools) > 1000:
                tools.popitem(last=False)
        elif entry.kind == "undo":
            _mark(found, entry.fields)
        elif entry.at >= since:
            for change in _changes(entry, tools):
                found[(change.id, change.path, entry.number)] = change
                if len(found) > limit:
                    found.popitem(last=False)
    return _with_texts(list(reversed(found.values())))


def _changes(entry: Entry, tools: Mapping[str, str]) -> Iterable[PastChange]:
    fields = entry.fields
    match entry.kind:
        case "end":
            id, files = _text(fields, "call"), fields.get("files")
            for file in files if isinstance(files, list) else ():
                if isinstance(file, Mapping):
                    yield _written(id, entry.at, tools.get(id, ""), file)
        case "upload":
            path = f"{ROOTS['uploads']}/{_text(fields, 'path')}"
            yield PastChange(
                f"upload-{entry.number}", entry.at, "person", "", "uploaded", path, size_after=_count(fields, "size")
            )
        case "edit":
            done = _DONE.get(_text(fields, "what"))
            if done is not None:
                id = _text(fields, "id") or f"edit-{entry.number}"
                yield PastChange(
                    id, entry.at, "person", "", done, _text(fields, "path"), _text(fields, "to"),
                    _count(fields, "size_before"), _count(fields, "size"), fields.get("kept") is True,
                )  # fmt: skip


def _written(id: str, at: float, tool: str, file: Mapping[str, Any]) -> PastChange:
    return PastChange(
        id,
        at,
        "model",
        tool,
        "created" if file.get("before") is None else "changed",
        _text(file, "path"),
        size_before=_count(file, "size_before"),
        size_after=_count(file, "size_after"),
        kept=file.get("kept") is True,
        line=_count(file, "line") or 1,
        text_before=_text(file, "text_before")[:MAX_TEXT] if file.get("text_before") is not None else None,
        text_after=_text(file, "text_after")[:MAX_TEXT] if file.get("text_after") is not None else None,
    )


def _mark(found: OrderedDict[tuple[str, str, int], PastChange], fields: Mapping[str, object]) -> None:
    for key, change in found.items():
        if change.id == _text(fields, "call"):
            found[key] = replace(change, undone=fields.get("undone") is not False)


def _with_texts(changes: list[PastChange]) -> list[PastChange]:
    left = _MAX_TEXTS
    for place, change in enumerate(changes):
        left -= len(change.text_before or "") + len(change.text_after or "")
        if left < 0:
            changes[place] = replace(change, text_before=None, text_after=None)
    return changes


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value[: max(_MAX_PATH, MAX_TEXT)] if isinstance(value, str) else ""


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
