"""Which media types a request names, as section 7.1 wants them."""

from __future__ import annotations

from collections.abc import Sequence

JSON = "application/json"
EVENTS = "text/event-stream"


def media_types(values: Sequence[str]) -> frozenset[str]:
    """The types that Accept headers name, without parameters; one refused with q=0 is not named."""
    named = set()
    for part in ",".join(values).split(","):
        media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if media_type and not any(_is_zero(p) for p in parameters):
            named.add(media_type)
    return frozenset(named)


def accepts_mcp(values: Sequence[str]) -> bool:
    """Both types are named, in any order; a wildcard names neither."""
    return {JSON, EVENTS} <= media_types(values)


def is_json(content_type: str | None) -> bool:
    return (content_type or "").split(";")[0].strip().lower() == JSON


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    try:
        return name.strip() == "q" and float(value) == 0
    except ValueError:
        return False
