"""The arguments of a tool call: read by name, checked, with a sentence for each thing that is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_MAX_PATH = 4096
_MAX_NUMBER = 100
"""Characters of one that comes as a text."""


class BadArgument(ValueError):
    """An argument is missing or wrong; the message names it and says what is wanted."""


class Arguments:
    """What the caller sent. A null counts as absent."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        """All of them, unchecked."""

    def _find(self, name: str, aliases: Sequence[str]) -> Any:
        for key in (name, *aliases):
            if (value := self.values.get(key)) is not None:
                return value
        return None

    def text(self, name: str, *aliases: str) -> str:
        value = self.optional_text(name, *aliases)
        if value is None:
            raise BadArgument(f"The argument `{name}` is missing: call the tool again with it.")
        return value

    def optional_text(self, name: str, *aliases: str) -> str | None:
        value = self._find(name, aliases)
        if value is not None and not isinstance(value, str):
            raise BadArgument(f"The argument `{name}` must be a string, not {_kind(value)}.")
        return value

    def path(self, name: str, *aliases: str) -> str:
        value = self.text(name, *aliases)
        if len(value) > _MAX_PATH:
            raise BadArgument(f"The argument `{name}` is longer than a path may be: {_MAX_PATH:,} characters.")
        if not value.startswith("/") or "\0" in value:
            raise BadArgument(f"The argument `{name}` must be an absolute path, such as /home/assistant/notes.txt.")
        return value

    def optional_number(self, name: str, low: float, high: float) -> float | None:
        value = self._find(name, ())
        if value is None:
            return None
        if isinstance(value, str):
            try:
                value = float(value) if len(value) <= _MAX_NUMBER else math.nan
            except ValueError:
                value = math.nan
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise BadArgument(f"The argument `{name}` must be a number from {low:,g} to {high:,}.")
        return value

    def optional_choice(self, name: str, choices: Sequence[str]) -> str | None:
        value = self.optional_text(name)
        if value is not None and value not in choices:
            raise BadArgument(f"The argument `{name}` must be one of {', '.join(choices)}.")
        return value

    def optional_pair(self, name: str) -> tuple[int, int] | None:
        value = self._find(name, ())
        if value is None:
            return None
        match value:
            case [int() as first, int() as second] if not (isinstance(first, bool) or isinstance(second, bool)):
                return first, second
            case _:
                raise BadArgument(f"The argument `{name}` must be two integers: [first line, last line].")


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case list():
            return "an array"
        case _:
            return "an object"
