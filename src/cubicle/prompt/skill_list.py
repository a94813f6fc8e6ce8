"""The skills as the prompt lists them: the user's own first, and of each as much as there is room for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, takewhile

from cubicle.prompt.skills import MANIFEST, MOUNT, Skill

MAX_TOKENS = 800
"""What is left of the prompt's 2,500 when the rest of it is at its longest."""
_ROOM_FOR_HEADS = 80
_FULL = (240, 160, 100)
_SHORT = (100, 60, 30, 0)
"""Characters of a description, tried one after the other until all skills fit; under a common head, then by name."""
_TOKEN = re.compile(r"[A-Za-z]{1,8}|[0-9]{1,3}|[!-/:-@\[-`{-~]+|[^\x00-\x7f]")


@lru_cache(maxsize=4096)
def tokens(text: str) -> int:
    """No fewer than common tokenizers count."""
    return sum(1 for _ in _TOKEN.finditer(text))


def skill_list(skills: Sequence[Skill]) -> tuple[list[str], int]:
    """(lines, how many skills are in none of them)."""
    nearest = sorted(skills, key=lambda s: (s.source.group != "user", s.name))
    for length in _FULL:
        if _fits(lines := [_line(s.location, s.description, length) for s in nearest]):
            return lines, 0
    for length in _SHORT:
        if _fits(lines := list(_by_name(nearest, length))):
            return lines, 0
    ends = accumulate(tokens(_line(s.name, s.description, 0)) for s in nearest)
    kept = sum(1 for _ in takewhile(lambda end: end <= MAX_TOKENS - _ROOM_FOR_HEADS, ends))
    return list(_by_name(nearest[:kept], 0)), len(nearest) - kept


def _by_name(skills: Iterable[Skill], length: int) -> Iterator[str]:
    for group, members in groupby(skills, key=lambda s: s.source.group):
        yield f"`{MOUNT}/{group}/NAME/{MANIFEST}`, which begins with the whole description, for each NAME of:"
        yield from (_line(s.name, s.description, length) for s in members)


def _line(name: str, description: str, length: int) -> str:
    if not length:
        return f"- `{name}`"
    return f"- `{name}`: {description if len(description) <= length else description[: length - 1] + '…'}"


def _fits(lines: Iterable[str]) -> bool:
    return all(total <= MAX_TOKENS for total in accumulate(map(tokens, lines)))
