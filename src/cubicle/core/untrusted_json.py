"""JSON that a sandbox wrote: bounded before it is built, and free of what JSON does not have."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from cubicle.core.request_limits import JsonStructure, TooComplex


class BadJson(ValueError):
    """This is no JSON, or more of it than anybody may send here."""


def parse(text: bytes | str, *, max_size: int, max_values: int) -> Any:
    """The value of a text. Raises BadJson: too large, too complex, no JSON, or a number that is none."""
    if len(text) > max_size:
        raise BadJson(f"more than {max_size} bytes")
    try:
        structure = JsonStructure(max_values)
        structure.feed(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        return _DECODER.decode(text)
    except TooComplex as error:
        raise BadJson(str(error)) from None
    except (ValueError, RecursionError):
        raise BadJson("no JSON") from None


def parse_object(text: bytes | str, *, max_size: int, max_values: int) -> dict[str, Any]:
    """The same for a text that has to be an object."""
    value = parse(text, max_size=max_size, max_values=max_values)
    if not isinstance(value, dict):
        raise BadJson("no JSON object")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
"""Made once: that takes as long as to read a message of the guest."""
