"""The arguments of a call that a service before this one began, as far as the journal has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cubicle.core.arguments_hash import arguments_hash


def known_arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command or an agent's task: texts, the longest of them cut."""
    arguments: dict[str, Any] = {"command": "", "prompt": "", **_texts(fields), "description": "-"}
    for name in ("timeout", "max_turns"):
        try:
            arguments[name] = float(arguments.get(name, ""))
        except ValueError:
            arguments.pop(name, None)
    return arguments


def whole_arguments(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Those of a tool that reads or changes a file, exactly as they came; None if the journal has not all of them."""
    arguments: dict[str, Any] = _texts(fields)
    if described := fields.get("description"):
        arguments["description"] = described
    if (lines := arguments.get("view_range")) is not None:
        try:
            arguments["view_range"] = json.loads(lines)
        except ValueError:
            return None
    for found in (arguments, {"view_range": None} | arguments):  # the journal leaves out what is null
        if arguments_hash(str(fields.get("tool")), found) == fields.get("arguments_hash"):
            return found
    return None


def _texts(fields: Mapping[str, Any]) -> dict[str, str]:
    kept = fields.get("arguments")
    return {name: value for name, value in kept.items() if isinstance(value, str)} if isinstance(kept, dict) else {}
