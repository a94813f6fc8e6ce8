"""Which media types a request names, as section 7.1 wants them, and which it would rather have."""

from __future__ import annotations

import re
from collections.abc import Sequence

JSON = "application/json"
EVENTS = "text/event-stream"
MOST_NAMED = 1000
"""Media types looked at; a browser names some ten."""
MOST_PIECES = 16
"""Of one of them: its name and its parameters."""
_WEIGHT = re.compile(r"q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")


def media_types(values: Sequence[str]) -> frozenset[str]:
    """The types that Accept headers name, without parameters; one refused with q=0 is not named."""
    named = set()
    for part in _parts(values):
        media_type, *parameters = _pieces(part)
        if media_type and not any(_is_zero(p) for p in parameters):
            named.add(media_type)
    return frozenset(named)


def accepts_mcp(values: Sequence[str]) -> bool:
    """Both types are named, in any order; a wildcard names neither."""
    return {JSON, EVENTS} <= media_types(values)


def asks_for(values: Sequence[str], wanted: str, *, instead_of: str) -> bool:
    """Whether Accept headers prefer a type to the one that is sent unasked; `*/*` alone does not.

    The greater weight decides, then the closer name, then which comes first.
    """
    found = _preference(values, wanted)
    return found[0] > 0 and found[1] > 0 and found > _preference(values, instead_of)


def _preference(values: Sequence[str], media_type: str) -> tuple[float, int, int]:
    """(weight, how closely it is named: 2 as itself, 1 as a kind, 0 by */*, the place counted from the end)."""
    names = ("*/*", media_type.partition("/")[0] + "/*", media_type)
    best = (0.0, -1, 0)
    for place, part in enumerate(_parts(values)):
        name, *parameters = _pieces(part)
        if name in names and names.index(name) > best[1]:
            weights = [float(found[1]) for p in parameters if (found := _WEIGHT.fullmatch(p))]
            best = (weights[0] if weights else 1.0, names.index(name), -place)
    return best


def _parts(values: Sequence[str]) -> list[str]:
    return ",".join(values).split(",", MOST_NAMED)[:MOST_NAMED]


def _pieces(part: str) -> list[str]:
    return [piece.strip().lower() for piece in part.split(";", MOST_PIECES)[:MOST_PIECES]]


def is_json(content_type: str | None) -> bool:
    return (content_type or "").split(";")[0].strip().lower() == JSON


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    try:
        return name.strip() == "q" and float(value) == 0
    except ValueError:
        return False
