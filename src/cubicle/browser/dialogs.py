"""What a page has open that is not in its pictures: dialogs, lists, pickers, file choosers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cubicle.browser.messages import number, short

# In tuples, not sets: what is looked for may be of a kind that no set takes.
_DIALOGS = ("alert", "confirm", "prompt", "beforeunload")
_PICKERS = ("date", "time", "datetime-local", "month", "week", "color")
_MOST_OPEN = 32


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of them, with the handle that its answer needs."""

    id: str
    kind: str
    tab: str
    fields: dict[str, Any] = field(repr=False)
    object_id: str = ""
    node: int = 0

    def record(self) -> dict[str, Any]:
        return {"type": self.kind, "id": self.id, "tab": self.tab, **self.fields}


class Prompts:
    """All that are open, in bounded number."""

    def __init__(self) -> None:
        self._open: dict[str, Prompt] = {}
        self._count = 0

    def __iter__(self) -> Iterator[Prompt]:
        return iter(list(self._open.values()))

    def get(self, id: str, kind: str) -> Prompt | None:
        found = self._open.get(id)
        return found if found is not None and found.kind == kind else None

    def close(self, id: str) -> bool:
        return self._open.pop(id, None) is not None

    def dialog(self, tab: str, params: dict[str, Any]) -> Prompt:
        kind = params.get("type")
        fields = {
            "kind": kind if kind in _DIALOGS else "alert",
            "message": short(params.get("message"), 10_000),
            "value": short(params.get("defaultPrompt")),
        }
        return self._add("dialog", tab, fields)

    def popup(self, tab: str, found: dict[str, Any], object_id: str) -> Prompt:
        """A list or a picker, as the page described it."""
        rect = found.get("rect") if isinstance(found.get("rect"), dict) else {}
        fields: dict[str, Any] = {"rect": {side: number((rect or {}).get(side), -1e5) for side in "xywh"}}
        if found.get("popup") == "select":
            options = found.get("options") if isinstance(found.get("options"), list) else []
            listed = [_option(index, option) for index, option in enumerate((options or [])[:1000])]
            fields |= {"multiple": found.get("multiple") is True, "options": listed}
            return self._add("select", tab, fields, object_id)
        kind = found.get("kind")
        fields |= {name: short(found.get(name), 100) for name in ("value", "min", "max", "step")}
        fields["kind"] = kind if kind in _PICKERS else "date"
        return self._add("picker", tab, fields, object_id)

    def chooser(self, tab: str, params: dict[str, Any], accept: str) -> Prompt:
        node = params.get("backendNodeId")
        fields = {"multiple": params.get("mode") == "selectMultiple", "accept": short(accept)}
        return self._add("chooser", tab, fields, node=node if isinstance(node, int) else 0)

    def _add(self, kind: str, tab: str, fields: dict[str, Any], object_id: str = "", node: int = 0) -> Prompt:
        self._count += 1
        prompt = Prompt(f"p{self._count}", kind, tab, fields, object_id, node)
        self._open[prompt.id] = prompt
        while len(self._open) > _MOST_OPEN:
            self._open.pop(next(iter(self._open)))
        return prompt


def _option(index: int, option: Any) -> dict[str, Any]:
    fields = option if isinstance(option, dict) else {}
    return {
        "index": index,
        "label": short(fields.get("label")),
        "group": short(fields.get("group")),
        "disabled": fields.get("disabled") is True,
        "selected": fields.get("selected") is True,
    }
