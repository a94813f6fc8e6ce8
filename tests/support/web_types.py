"""TypeScript types of what the service and its pages say to each other, printed from the Python models.

`python -m tests.support.web_types` writes them; `--check` compares instead.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import (  # noqa: UP035
    Annotated,
    Any,
    Dict,
    List,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
)

from pydantic import BaseModel
from typing_extensions import get_type_hints, is_typeddict

from cubicle.agents.sessions import TranscriptRecord
from cubicle.browser import messages, server_messages
from cubicle.chat import activity_events
from cubicle.http_api import file_models, home_models, models, overview_models, page_data

SOURCES = Path(__file__).parents[2] / "web" / "src"
_NOTE = "// Generated from the Python models by scripts/web-types. Do not edit: change the models and run it again.\n"
_PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null", Any: "unknown"}
_WIDTH = 110


class Printer:
    """Prints types, each after those that it needs. Models that are named in their own right get a name."""

    def __init__(self, aliases: dict[str, Any]) -> None:
        self._aliases = aliases
        self._done: dict[str, str] = {}

    def add(self, name: str, model: Any) -> None:
        if name in self._done:
            return
        self._done[name] = ""  # keeps its place out of a circle
        text = self._fields(name, model) if _has_fields(model) else self._alias(name, model)
        del self._done[name]  # those that it needs come first
        self._done[name] = text

    def text(self) -> str:
        return _NOTE + "\n" + "\n".join(self._done.values())

    def _alias(self, name: str, model: Any) -> str:
        parts = [self.type(part) for part in get_args(model)] if _is_choice(model) else self.type(model).split(" | ")
        line = f"export type {name} = {' | '.join(parts)};\n"
        if len(line) <= _WIDTH + 1:
            return line
        return f"export type {name} =\n" + "\n".join(f"  | {part}" for part in parts) + ";\n"

    def _fields(self, name: str, model: Any) -> str:
        own = (model.__doc__ or "").strip()
        inherited = {"", (BaseModel.__doc__ or "").strip(), (dict.__doc__ or "").strip()}
        comment = f"/** {' '.join(own.split())} */\n" if own not in inherited else ""
        rows = "".join(_row(f"{field}{'?' if maybe else ''}", kind) for field, kind, maybe in self._rows(model))
        return f"{comment}export interface {name} {{\n{rows}}}\n"

    def _rows(self, model: Any) -> list[tuple[str, str, bool]]:
        hints = get_type_hints(model, include_extras=True)
        if is_typeddict(model):
            return [(name, self.type(hint), _is_optional(model, name, hint)) for name, hint in hints.items()]
        fields = model.model_fields
        return [(name, self.type(hints[name]), not field.is_required()) for name, field in fields.items()]

    def type(self, hint: Any) -> str:
        """The TypeScript type of one annotation."""
        for name, model in self._aliases.items():
            if hint == model and name not in ("", *self._circle()):
                self.add(name, model)
                return name
        if hint in _PLAIN:
            return _PLAIN[hint]
        if _has_fields(hint):
            self.add(hint.__name__, hint)
            return str(hint.__name__)
        return self._compound(get_origin(hint), get_args(hint), hint)

    def _circle(self) -> list[str]:
        return [name for name, text in self._done.items() if not text]

    def _compound(self, origin: Any, inner: tuple[Any, ...], hint: Any) -> str:
        if origin in (Annotated, Required, NotRequired):
            return self.type(inner[0])
        if origin is Literal:
            return " | ".join(_literal(value) for value in inner)
        if origin in (Union, types.UnionType):
            return " | ".join(self.type(part) for part in inner)
        if origin in (list, List):  # noqa: UP006
            item = self.type(inner[0])
            return f"({item})[]" if " " in item else f"{item}[]"
        if origin in (dict, Dict):  # noqa: UP006
            return f"Record<{self.type(inner[0])}, {self.type(inner[1])}>"
        raise TypeError(f"No TypeScript type is known for {hint!r}.")


def _row(name: str, kind: str) -> str:
    """As the formatter of the pages folds it."""
    line = f"  {name}: {kind};\n"
    if len(line) <= _WIDTH + 1 or " | " not in kind:
        return line
    return f"  {name}:\n" + "\n".join(f"    | {part}" for part in kind.split(" | ")) + ";\n"


def _is_optional(model: Any, name: str, hint: Any) -> bool:
    # The keys that a class lists do not show NotRequired where annotations are kept as text.
    return get_origin(hint) is NotRequired or name in model.__optional_keys__


def _has_fields(model: Any) -> bool:
    return is_typeddict(model) or (isinstance(model, type) and issubclass(model, BaseModel))


def _is_choice(model: Any) -> bool:
    return get_origin(model) in (Union, types.UnionType)


def _literal(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else f'"{value}"'


def _models(module: types.ModuleType) -> dict[str, Any]:
    """What a module itself defines and names: its typed dictionaries, and its unions and lists of literals."""
    found = {}
    for name, value in vars(module).items():
        own = _has_fields(value) and value.__module__ == module.__name__
        choice = _is_choice(value) or get_origin(value) is Literal
        if not name.startswith("_") and (own or choice):
            found[name] = value
    return found


def api() -> str:
    """The answers of the HTTP API."""
    found = _models(models)
    printer = Printer({name: found[name] for name in ("Condition", "Root", "EntryKind")})
    for name, model in {**found, "PageData": page_data.PageData, "TranscriptRecord": TranscriptRecord}.items():
        if name != "ProblemDetails":
            printer.add(name, model)
    return printer.text()


def files() -> str:
    """The answers about the work on files."""
    found = _models(models)
    printer = Printer({name: found[name] for name in ("Root", "EntryKind")})
    for name, model in _models(file_models).items():
        printer.add(name, model)
    return printer.text()


def home() -> str:
    """What the home page is told."""
    printer = Printer({})
    for name, model in _models(home_models).items():
        printer.add(name, model)
    return printer.text()


def overview() -> str:
    """What the admin page is told."""
    found = _models(overview_models)
    printer = Printer({name: found[name] for name in ("Condition", "ProblemKind")})
    for name, model in found.items():
        printer.add(name, model)
    return printer.text()


def events() -> str:
    """The events of the activity stream."""
    models = _models(activity_events)
    printer = Printer({"Ending": activity_events.Ending})
    for name, model in models.items():
        if name != "CallFields":
            printer.add(name, model)
    return printer.text()


def live() -> str:
    """The messages of the live view, in both directions."""
    printer = Printer(
        {
            "DialogKind": server_messages.DialogKind,
            "PickerKind": server_messages.PickerKind,
            "BrowserState": server_messages.BrowserState,
            "Popup": server_messages.Popup,
            "Button": get_type_hints(messages.Mouse)["button"],
        }
    )
    printer.add("Popup", server_messages.Popup)
    printer.add("FromService", server_messages.ServerMessage)
    printer.add("FromViewer", messages.Said)
    return printer.text()


GENERATED = {
    SOURCES / "common" / "api.generated.ts": api,
    SOURCES / "common" / "files.generated.ts": files,
    SOURCES / "admin" / "overview.generated.ts": overview,
    SOURCES / "home" / "home.generated.ts": home,
    SOURCES / "workspace" / "events.generated.ts": events,
    SOURCES / "live" / "messages.generated.ts": live,
}


def stale() -> list[str]:
    """The files that do not say what the models say."""
    return [path.name for path, make in GENERATED.items() if not path.exists() or path.read_text() != make()]


def main() -> int:
    if "--check" in sys.argv[1:]:
        for name in stale():
            print(f"{name} is older than the Python models. Run: scripts/web-types")
        return 1 if stale() else 0
    for path, make in GENERATED.items():
        path.write_text(make())
    return 0


if __name__ == "__main__":
    sys.exit(main())
