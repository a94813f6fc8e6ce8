"""What a page has open that is not in its pictures: dialogs, lists, pickers, file choosers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from cubicle.browser.messages import number, short
from cubicle.browser.server_messages import DialogKind, PickerKind, Popup, Rect, SelectOption

Kind = TypeVar("Kind", DialogKind, PickerKind)

_DIALOGS: tuple[DialogKind, ...] = get_args(DialogKind)
_PICKERS: tuple[PickerKind, ...] = get_args(PickerKind)
_MAX_OPEN = 32


@dataclass(frozen=True, slots=True)
class PageDialog:
    """One of them, with the handle that its answer needs."""

    message: Popup = field(repr=False)
    object_id: str = ""
    node: int = 0

    @property
    def id(self) -> str:
        return self.message["id"]

    @property
    def kind(self) -> str:
        return self.message["type"]

    @property
    def tab(self) -> str:
        return self.message["tab"]


class PageDialogs:
    """All that are open, in bounded number."""

    def __init__(self) -> None:
        self._open: dict[str, PageDialog] = {}
        self._count = 0

    def __iter__(self) -> Iterator[PageDialog]:
        return iter(list(self._open.values()))

    def get(self, id: str, kind: str) -> PageDialog | None:
        found = self._open.get(id)
        return found if found is not None and found.kind == kind else None

    def close(self, id: str) -> bool:
        return self._open.pop(id, None) is not None

    def dialog(self, tab: str, params: dict[str, Any]) -> PageDialog:
        return self._add(
            {
                "type": "dialog",
                "id": self._next_id(),
                "tab": tab,
                "kind": _known(params.get("type"), _DIALOGS, "alert"),
                "message": short(params.get("message"), 10_000),
                "value": short(params.get("defaultPrompt")),
            }
        )

    def popup(self, tab: str, found: dict[str, Any], object_id: str) -> PageDialog:
        """A list or a picker, as the page described it."""
        message = self._select(tab, found) if found.get("popup") == "select" else self._picker(tab, found)
        return self._add(message, object_id)

    def _select(self, tab: str, found: dict[str, Any]) -> Popup:
        options = found.get("options")
        listed = options[:1000] if isinstance(options, list) else []
        return {
            "type": "select",
            "id": self._next_id(),
            "tab": tab,
            "rect": _rect(found.get("rect")),
            "multiple": found.get("multiple") is True,
            "options": [_option(index, option) for index, option in enumerate(listed)],
        }

    def _picker(self, tab: str, found: dict[str, Any]) -> Popup:
        return {
            "type": "picker",
            "id": self._next_id(),
            "tab": tab,
            "rect": _rect(found.get("rect")),
            "kind": _known(found.get("kind"), _PICKERS, "date"),
            "value": short(found.get("value"), 100),
            "min": short(found.get("min"), 100),
            "max": short(found.get("max"), 100),
            "step": short(found.get("step"), 100),
        }

    def chooser(self, tab: str, params: dict[str, Any], accept: str) -> PageDialog:
        node = params.get("backendNodeId")
        message: Popup = {
            "type": "chooser",
            "id": self._next_id(),
            "tab": tab,
            "multiple": params.get("mode") == "selectMultiple",
            "accept": short(accept),
        }
        return self._add(message, node=node if isinstance(node, int) else 0)

    def _next_id(self) -> str:
        self._count += 1
        return f"p{self._count}"

    def _add(self, message: Popup, object_id: str = "", node: int = 0) -> PageDialog:
        prompt = PageDialog(message, object_id, node)
        self._open[prompt.id] = prompt
        while len(self._open) > _MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        return prompt


def _known(value: Any, kinds: tuple[Kind, ...], otherwise: Kind) -> Kind:
    """A kind that a page names, if it is one of these."""
    return next((kind for kind in kinds if kind == value), otherwise)


def _rect(value: Any) -> Rect:
    sides = value if isinstance(value, dict) else {}
    x, y, w, h = (number(sides.get(side), -1e5) for side in "xywh")
    return {"x": x, "y": y, "w": w, "h": h}


def _option(index: int, option: Any) -> SelectOption:
    fields = option if isinstance(option, dict) else {}
    return {
        "index": index,
        "label": short(fields.get("label")),
        "group": short(fields.get("group")),
        "disabled": fields.get("disabled") is True,
        "selected": fields.get("selected") is True,
    }
